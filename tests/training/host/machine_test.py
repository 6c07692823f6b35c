import os
import pathlib
import tempfile
import types
from unittest import mock

import jax
import ml_collections
from absl.testing import absltest, parameterized

from training import mesh as meshes
from training.host import allocator, machine


class PrepareTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        for name in ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs',
                     'jax_persistent_cache_min_entry_size_bytes', 'jax_enable_x64'):
            self.addCleanup(jax.config.update, name, getattr(jax.config, name))
        self.addCleanup(jax.config.update, 'jax_cpu_enable_async_dispatch', True)  # it has no attribute to read

    @parameterized.parameters(True, False)
    def test_flags_are_heeded(self, on):
        with mock.patch.dict('os.environ', {'HEED_CACHE': '/somewhere', 'XLA_FLAGS': '--given'}) as environment, \
                mock.patch.object(allocator, 'keep_pages') as keep_pages:
            machine.prepare(ml_collections.ConfigDict({'allocator': on, 'deterministic': on}))
            self.assertEqual(keep_pages.called, on)
            self.assertEqual('--xla_gpu_deterministic_ops=true' in environment['XLA_FLAGS'], on)
            self.assertStartsWith(environment['XLA_FLAGS'], '--given')
            self.assertStartsWith(jax.config.jax_compilation_cache_dir, '/somewhere/xla/')

    def test_devices_that_share_a_cpu_get_threads_to_spare(self):
        for given, wanted in (('--xla_force_host_platform_device_count=4', True), ('', False)):
            with mock.patch.dict('os.environ', {'XLA_FLAGS': given}) as environment:
                environment.pop('NPROC', None)
                machine.prepare(ml_collections.ConfigDict({'allocator': False, 'deterministic': False}))
                self.assertEqual(int(environment.get('NPROC', 0)) > 8, wanted)

    def test_programs_of_so_many_threads_have_a_cache_of_their_own(self):
        caches = {}
        for cores, said in ((1, {}), (2, {}), (2, {'NPROC': '1'}), (2, {'PJRT_NPROC': '1', 'NPROC': '2'}), (2, {'NPROC': '8'}),
                            (2, {'NPROC': '0'}), (2, {'NPROC': '+1'}), (2, {'NPROC': '-3'}),
                            (2, {'NPROC': ''}), (2, {'NPROC': 'all'})):  # XLA ignores the last two
            with mock.patch.dict('os.environ', {'HEED_CACHE': '/somewhere'}), \
                    mock.patch.object(os, 'sched_getaffinity', lambda _, cores=cores: {*range(cores)}):
                for name in ('NPROC', 'PJRT_NPROC'):
                    os.environ.pop(name, None)
                os.environ.update(said)
                machine.prepare(ml_collections.ConfigDict({'allocator': False}))
                caches.setdefault(jax.config.jax_compilation_cache_dir, []).append((cores, *said.values()))
        self.assertEqual(list(caches.values()), [
            [(1,), (2, '1'), (2, '1', '2'), (2, '0'), (2, '+1'), (2, '-3')], [(2,), (2, '8'), (2, ''), (2, 'all')]])

    def test_float64_takes_the_64_bit_types_of_jax_and_other_types_do_not(self):
        prepare = lambda dtype: machine.prepare(ml_collections.ConfigDict({'allocator': False, 'dtype': dtype}))
        for dtype, exact in (('float64', True), ('bfloat16', False), ('float64', True), ('float32', False)):
            prepare(dtype)
            self.assertEqual(jax.numpy.ones(2).dtype, 'float64' if exact else 'float32')
        with mock.patch.object(jax, 'default_backend', return_value='gpu'):
            prepare('float32')
            with self.assertRaisesRegex(ValueError, "^dtype is 'float64', which is for proofs on a CPU, but this process "
                                                    'computes on a gpu; set dtype to float32, or JAX_PLATFORMS=cpu'):
                prepare('float64')

    def test_the_cache_is_in_the_home_folder_by_default(self):
        with mock.patch.dict('os.environ', {'HEED_CACHE': ''}):
            self.assertEqual(machine.cache_folder(), pathlib.Path.home() / '.cache' / 'heed')


class ProcessorTest(absltest.TestCase):
    def test_a_kind_is_a_name_with_its_family_and_model(self):
        shown = 'processor\t: 0\ncpu family\t: 6\nmodel\t\t: 167\nmodel name\t: A CPU\nflags\t\t: fma\n\n' * 2
        with mock.patch.object(pathlib.Path, 'read_text', return_value=shown):
            self.assertEqual(machine.processor(), 'A CPU, family 6, model 167')
        for without in (mock.patch.object(pathlib.Path, 'read_text', return_value='processor : 0'),
                        mock.patch.object(pathlib.Path, 'read_text', side_effect=FileNotFoundError)):
            with without, mock.patch('platform.processor', return_value='arm64'):
                self.assertEqual(machine.processor(), 'arm64')


class MemoryTest(parameterized.TestCase):
    def program(self, size):
        sizes = types.SimpleNamespace(argument_size_in_bytes=size, output_size_in_bytes=size, alias_size_in_bytes=size,
                                      temp_size_in_bytes=0)
        return types.SimpleNamespace(memory_analysis=lambda: sizes)

    def test_a_step_that_cannot_fit_is_refused(self):
        mesh = meshes.make(1)
        machine.require_memory(self.program(1 << 20), mesh)
        with self.assertRaisesRegex(ValueError, r'A step needs 1,048,576.0 GiB, but cpu has [0-9.,]+; lower'):
            machine.require_memory(self.program(1 << 50), mesh)

    def test_the_devices_of_other_machines_have_memory_of_their_own(self):
        needed, pages = self.program(900), mock.patch('os.sysconf', return_value=32)  # 32 pages of 32 bytes
        device = mock.Mock(platform='cpu', device_kind='cpu')
        mesh = mock.Mock(devices=mock.Mock(flat=[device] * 4), size=4, local_devices=[device])
        with pages:
            machine.require_memory(needed, mesh)
            mesh.local_devices *= 2
            with self.assertRaisesRegex(ValueError, 'A step needs 0.0 GiB, but cpu has 0.0'):
                machine.require_memory(needed, mesh)

    def test_compiled_programs_say_what_they_need(self):
        compiled = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((256, 256), 'float32')).compile()
        with (mock.patch('os.sysconf', return_value=600),  # 600 pages of 600 bytes; two arrays of 256 KiB
              self.assertRaisesRegex(ValueError, 'A step needs 0.0 GiB')):
            machine.require_memory(compiled, meshes.make(1))


class ProfileTest(parameterized.TestCase):
    def profiled(self, steps, first=1, last=6):
        """The steps after which a trace was being written, of a loop over first..last."""
        inside, running = [], []
        with mock.patch('jax.profiler.start_trace', side_effect=running.append), \
                mock.patch('jax.profiler.stop_trace', side_effect=running.clear), \
                machine.Profile(steps, 9, pathlib.Path('folder')) as profile:
            for step in range(first, last + 1):
                profile.before(step, step)
                inside += [step] * len(running)
                profile.after(step, ())
        self.assertEqual(running, [])  # closed, however the loop ends
        return inside

    @parameterized.parameters(('', []), ('2:4', [2, 3, 4]), ('3:3', [3]), ('5:9', [5, 6]), ('8:9', []))
    def test_both_ends_are_included(self, steps, wanted):
        self.assertEqual(self.profiled(steps), wanted)

    def test_a_run_that_resumes_in_between_profiles_the_rest(self):
        self.assertEqual(self.profiled('2:4', first=3), [3, 4])
        self.assertEqual(self.profiled('2:4', first=5), [])

    def test_a_profile_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            with machine.Profile('1:1', 1, pathlib.Path(folder)) as profile:
                profile.before(1, 1)
                profile.after(1, jax.device_put(1.0))
            self.assertNotEmpty(list(pathlib.Path(folder).rglob('*.xplane.pb')))

    @parameterized.parameters('3', '0:2', '4:2', 'a:b', '-1:2', '1:2:3', ':', '9:10')
    def test_other_forms_are_refused(self, steps):
        with self.assertRaisesRegex(ValueError, "profile.steps is .*expected 'first:last'"):
            machine.Profile(steps, 9, pathlib.Path('folder'))


if __name__ == '__main__':
    absltest.main()
