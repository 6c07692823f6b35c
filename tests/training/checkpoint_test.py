"""Checkpoints: what is saved comes back bit for bit, and what does not is noticed."""

import os

os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=8'

import contextlib
import io
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from unittest import mock

import grain
import jax
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized
from etils import epath
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.marks import slow_but
from training import checkpoint, storage

_BIG = 3200  # elements of an array that fills a file of its own


def _state(seed: int, devices: int = 1):
    """A state with what training states hold: several types, a scalar, containers of optax, sharded arrays."""
    mesh = jax.make_mesh((devices,), ('data',), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    rng = np.random.default_rng(seed)
    params = {
        'block_0': {'kernel': rng.normal(size=(_BIG // 8, 8)).astype(np.float32)},
        'head': jnp.asarray(rng.normal(size=(8, 16)), jnp.bfloat16),
    }
    state = {
        'params': params,
        'optimizer': optax.adam(1e-3).init(params),
        'counts': rng.integers(-5, 5, size=16, dtype=np.int32),
        'key': rng.integers(0, 2**32, size=(8, 2), dtype=np.uint32),
        'step': jnp.asarray(seed, jnp.int32),
    }

    def place(x):
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec('data') if x.ndim else PartitionSpec()))

    return jax.tree.map(place, state)


def _target(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def _batches():
    return iter(grain.MapDataset.range(40).shuffle(3).repeat().to_iter_dataset().batch(4))


def _flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def _truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _weights(step_folder: pathlib.Path) -> pathlib.Path:
    """The file that holds the weights: the largest."""
    return max((step_folder / 'state').rglob('*'), key=lambda path: path.stat().st_size if path.is_file() else 0)


def _rename(metadata: pathlib.Path) -> None:
    metadata.write_bytes(metadata.read_bytes().replace(b'kernel', b'kernal'))


def _overwrite(step_folder: pathlib.Path, array) -> None:
    """Changes one bit of `array` where it lies in the files."""
    data = np.asarray(array).tobytes()
    for path in (path for path in (step_folder / 'state').rglob('*') if path.is_file()):
        start = path.read_bytes().find(data)
        if start >= 0:
            with path.open('r+b') as file:
                file.seek(start)
                file.write(bytes([data[0] ^ 1]))
            return
    raise AssertionError('the array is nowhere in the files')


def _kernel(step: int):
    return _state(step)['params']['block_0']['kernel']


_DAMAGE = {
    'overwritten_weights': (lambda step: _overwrite(step, _kernel(2)), 'checksum of params/block_0/kernel differs'),
    'truncated_weights': (lambda step: _truncate(_weights(step)), 'state cannot be read'),
    'deleted_weights': (lambda step: _weights(step).unlink(), 'state cannot be read'),
    'renamed_array': (lambda step: _rename(step / 'state' / '_METADATA'), 'state cannot be read.*is not in it'),
    'deleted_state': (lambda step: shutil.rmtree(step / 'state'), 'state cannot be read'),
    'overwritten_meta': (lambda step: _flip(step / 'meta' / 'metadata'), 'meta'),
    'truncated_meta': (lambda step: _truncate(step / 'meta' / 'metadata'), 'meta cannot be read'),
    'deleted_meta': (lambda step: shutil.rmtree(step / 'meta'), 'meta cannot be read'),
    'other_data': (
        lambda step: shutil.copy(step.parent / '1' / 'data' / 'position.json', step / 'data'),
        'data .*checksum differs',
    ),
    'deleted_data': (lambda step: shutil.rmtree(step / 'data'), 'data cannot be read'),
    'deleted_commit_marker': (lambda step: (step / '_CHECKPOINT_METADATA').unlink(), 'meta cannot be read'),
    'emptied': (lambda step: (shutil.rmtree(step), step.mkdir()), 'meta cannot be read'),
}


class ChecksumsTest(parameterized.TestCase):

    @parameterized.parameters('float32', 'bfloat16', 'float16', 'float64', 'int32', 'uint32', 'int8')
    def test_one_bit_of_any_element_changes_it(self, dtype):
        values = np.asarray(jnp.linspace(-40, 90, 24).reshape(4, 6)).astype(dtype)
        with jax.enable_x64(dtype == 'float64'):
            before = checkpoint.checksums({'x': values})
            for index in np.ndindex(values.shape):
                for bit in (0, 8 * values.itemsize - 1):  # the unit in the last place, and the sign
                    changed = values.copy()
                    changed.view(f'u{values.itemsize}')[index] ^= 1 << bit
                    self.assertNotEqual(before, checkpoint.checksums({'x': changed}), index)

    def test_scalars_and_booleans(self):
        sums = [checkpoint.checksums({'x': x})['x'] for x in (jnp.float32(1), jnp.float32(2), np.array([True, False]),
                                                               np.array([False, True]), np.array([True, True]))]
        self.assertLen(set(sums), 5)

    @parameterized.parameters((0, 1), (0, 256), (3, 515), (1, 1023))
    def test_swapping_two_elements_changes_it(self, first, second):
        # Pairs that differ in one high bit, which a plain weighted sum loses at some distances.
        for pair in ((0.0, -0.0), (1.0, 2.0)):
            values = np.full(1024, 0.5, np.float32)
            values[[first, second]] = pair
            swapped = values.copy()
            swapped[[second, first]] = pair
            self.assertNotEqual(checkpoint.checksums({'x': values}), checkpoint.checksums({'x': swapped}))

    def test_is_the_documented_sum(self):
        # Stored in files, so it must never change.
        values = np.array([[1.5, -2.0], [0.0, 3e-38]], np.float32)
        total = 0
        for i, bits in enumerate(values.view(np.uint32).ravel().tolist()):
            h = (bits + (i + 1) * 0x9E3779B9) % 2**32
            h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
            h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
            total += h ^ h >> 16
        self.assertEqual(checkpoint.checksums({'a': {'b': [values]}}), {'a/b/0': total % 2**32})

    def test_same_on_any_number_of_devices(self):
        values = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
        expected = checkpoint.checksums({'x': values})
        for rows, columns in ((1, 1), (2, 1), (1, 2), (8, 1), (2, 4)):
            mesh = jax.make_mesh((rows, columns), ('r', 'c'), axis_types=(AxisType.Auto,) * 2,
                                 devices=jax.devices()[:rows * columns])
            for spec in (PartitionSpec(), PartitionSpec('r'), PartitionSpec('r', 'c'), PartitionSpec(None, ('r', 'c'))):
                placed = jax.device_put(values, NamedSharding(mesh, spec))
                self.assertEqual(checkpoint.checksums({'x': placed}), expected, (rows, columns, spec))


@slow_but('test_damage_is_said_and_the_step_before_used', 'overwritten_weights', 'other_data', 'deleted_commit_marker')
class CheckpointsTest(parameterized.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.saved = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / 'saved'
        writer, batches = checkpoint.Checkpoints(cls.saved), _batches()
        for step in (1, 2):
            next(batches)
            writer.save(step, _state(step), batches, meta={'examples': 4 * step})
        writer.close()

    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / 'run'
        self.folder = self.workdir / 'checkpoints'

    def open(self, **options) -> checkpoint.Checkpoints:
        opened = checkpoint.Checkpoints(self.workdir, **options)
        self.addCleanup(opened.close)
        return opened

    def save_two(self) -> None:
        """Puts steps 1 and 2, saved after one and two batches, into the workdir."""
        shutil.copytree(self.saved, self.workdir, dirs_exist_ok=True)

    def assert_bits_equal(self, actual, expected) -> None:
        self.assertEqual(jax.tree.structure(actual), jax.tree.structure(expected))
        for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected)):
            self.assertEqual(a.dtype, b.dtype, path)
            self.assertEqual(np.asarray(a).tobytes(), np.asarray(b).tobytes(), path)

    def restore(self, checkpoints, target, **options):
        """(restored, what was printed on stderr)."""
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            return checkpoints.restore(target, **options), stderr.getvalue()

    def test_round_trip(self):
        self.save_two()
        batches = _batches()
        restored, printed = self.restore(self.open(), _target(_state(0)), iterator=batches)
        self.assertEqual((restored.step, restored.meta, printed), (2, {'examples': 8}, ''))
        self.assert_bits_equal(restored.state, _state(2))
        expected = _batches()
        next(expected), next(expected)
        np.testing.assert_array_equal(next(batches), next(expected))

    def test_state_may_be_donated_and_iterator_moved_right_after_save(self):
        writer, batches, state = self.open(), _batches(), _state(1)
        next(batches)
        writer.save(1, state, batches)
        state = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(state)
        jax.block_until_ready(state)
        second, third = next(batches), next(batches)
        self.assert_bits_equal(writer.restore(_target(state), iterator=batches).state, _state(1))
        np.testing.assert_array_equal(next(batches), second)
        np.testing.assert_array_equal(next(batches), third)

    def test_meta_comes_back_as_json(self):
        writer = self.open()
        writer.save(1, {'params': jnp.ones(3)}, None, meta={'steps': {10: (1, 2), 9: float('inf')}, 'name': 'ü'})
        restored = writer.restore({'params': jnp.ones(3)})
        self.assertEqual(restored.meta, {'steps': {'10': [1, 2], '9': float('inf')}, 'name': 'ü'})

    def test_no_checkpoint_is_none(self):
        reader = self.open(writable=False)
        self.assertIsNone(reader.restore(_target(_state(0))))
        self.assertFalse(self.workdir.exists())
        self.assertIsNone(self.open().restore(_target(_state(0))))

    def test_keep_of_one_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'checkpoint\.keep is 1, but at least 2'):
            self.open(keep=1)

    def test_newest_and_best_are_kept(self):
        writer = self.open(keep=2, best='valid/loss')
        for step, metrics in enumerate([None, {'valid/loss': 2.0}, {'valid/loss': 1.0}, {'valid/loss': 1.0},
                                        {'valid/loss': float('nan')}, {'train/loss': 0.1}, {'valid/loss': 3.0}]):
            writer.save(step, {'params': jnp.float32(step)}, None, metrics)
        self.assertEqual((writer.steps(), writer.best_step()), ([2, 5, 6], 2))
        writer.close()
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ['2', '5', '6'])
        reopened = self.open(keep=2, best='valid/loss')
        self.assertEqual(reopened.best_step(), 2)
        reopened.save(7, {'params': jnp.float32(7)}, None, {'valid/loss': 0.5})
        reopened.wait()
        self.assertEqual((reopened.steps(), reopened.best_step()), ([6, 7], 7))

    @parameterized.parameters(('valid/accuracy', 2), ('answers/mrpc/f1', 2), ('translations/bleu', 2), ('valid/loss', 1),
                              ('valid/absolute_error', 1), ('valid/pairs_accuracy', 2), ('answers/mrpc_exact_match', 2),
                              ('translations/bleu_1', 2), ('by_length/low/1-5', 2), ('valid/agreement', 2),
                              ('valid/plateau', 1))
    def test_of_scores_the_highest_is_the_best_and_of_others_the_lowest(self, best, wanted):
        writer = self.open(keep=2, best=best)
        for step, value in enumerate((0.1, 0.9, 0.5, 0.6), 1):
            writer.save(step, {'params': jnp.float32(step)}, None, {best: value})
        self.assertEqual((writer.steps(), writer.best_step()), ([wanted, 3, 4], wanted))

    def test_what_is_measured_later_joins_what_was(self):
        writer = self.open(best='valid/loss')
        for step in (1, 2):
            writer.save(step, {'params': jnp.ones(3)}, None, {'valid/loss': float(step)}, meta={'pending': ['test']})
        writer.amend(1, {'test/loss': 5.0}, {'pending': []})
        for opened in (writer, self.open(best='valid/loss')):
            self.assertEqual(opened.best_step(), 1)
            found = [opened.restore(_target({'params': jnp.ones(3)}), step=step).meta for step in (1, 2)]
            self.assertEqual(found, [{'pending': []}, {'pending': ['test']}])
        writer.amend(2, {'valid/loss': 0.5}, {})
        self.assertEqual([opened.best_step() for opened in (writer, self.open(best='valid/loss'))], [2, 2])

    def test_a_bucket_that_is_away_while_something_joins_is_one_sentence(self):
        writer = self.open(best='valid/loss')
        writer.save(1, {'params': jnp.ones(3)}, None, {}, meta={'pending': ['valid']})
        writer.wait()
        of_service = type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})('Service Unavailable, 503')
        place = type(epath.Path(self.folder))
        for name, words in (('read_text', 'could not be read, though it may be intact .meta cannot be read, HttpError: Serv'),
                            ('write_text', 'metadata cannot be written .Service Unavailable, 503.: make sure that there is')):
            with (self.subTest(name), mock.patch.object(place, name, side_effect=of_service),
                  mock.patch.object(storage, 'remote', return_value=True), self.assertRaisesRegex(ValueError, words)):
                writer.amend(1, {'valid/loss': 1.0}, {})
        self.assertEqual(writer.restore(_target({'params': jnp.ones(3)})).meta, {'pending': ['valid']})
        self.assertIsNone(writer.best_step())
        _flip(self.folder / '1' / 'meta' / 'metadata')
        with self.assertRaisesRegex(ValueError, f'checkpoint 1 in {self.folder} has been damaged .meta cannot be read, '):
            writer.amend(1, {'valid/loss': 1.0}, {})

    def test_a_reader_finds_the_steps_that_training_saves_meanwhile(self):
        writer = self.open(keep=2)
        for step in (1, 2):
            writer.save(step, {'params': jnp.float32(step)}, None, {})
        writer.wait()
        reader = self.open(keep=2, writable=False)
        for step in (3, 4):
            writer.save(step, {'params': jnp.float32(step)}, None, {})
        writer.wait()
        restored, printed = self.restore(reader, _target({'params': jnp.float32(0)}))
        self.assertEqual((restored.step, float(restored.state['params']), printed), (4, 4.0, ''))

    def test_without_best_there_is_none(self):
        writer = self.open()
        for step in range(4):
            writer.save(step, {'params': jnp.float32(step)}, None, {'valid/loss': float(step)})
        self.assertEqual((writer.steps(), writer.best_step()), ([1, 2, 3], None))

    @parameterized.named_parameters((name, *case) for name, case in _DAMAGE.items())
    def test_damage_is_said_and_the_step_before_used(self, damage, words):
        self.save_two()
        damage(self.folder / '2')
        writer, batches = self.open(), _batches()
        restored, printed = self.restore(writer, _target(_state(0)), iterator=batches)
        self.assertEqual((restored.step, restored.meta), (1, {'examples': 4}))
        self.assert_bits_equal(restored.state, _state(1))
        expected = _batches()
        next(expected)
        np.testing.assert_array_equal(next(batches), next(expected))
        self.assertRegex(printed, rf'^checkpoint 2 is damaged \(.*{words}.*\), moved to damaged; resuming from 1\n$')

        # The damaged folder is out of the way, so the step can be saved again.
        self.assertEqual([path.name for path in (self.workdir / 'damaged').iterdir()], ['2'])
        writer.save(2, _state(5), batches)
        again = writer.restore(_target(_state(0)))
        self.assertEqual(again.step, 2)
        self.assert_bits_equal(again.state, _state(5))

    def test_damage_in_a_folder_with_the_name_of_a_failure(self):
        self.workdir = self.workdir.with_name('timeout')
        self.folder = self.workdir / 'checkpoints'
        self.save_two()
        (self.folder / '2' / 'meta' / 'metadata').unlink()
        restored, printed = self.restore(self.open(), _target(_state(0)))
        self.assertEqual(restored.step, 1)
        self.assertRegex(printed, r'^checkpoint 2 is damaged \(.*\), moved to damaged; resuming from 1\n$')

    def test_second_damage_of_a_step_gets_its_own_folder(self):
        for _ in range(2):
            self.save_two()
            _overwrite(self.folder / '2', _kernel(2))
            writer = checkpoint.Checkpoints(self.workdir)
            self.restore(writer, _target(_state(0)))
            writer.close()
            shutil.rmtree(self.folder)
        self.assertCountEqual([path.name for path in (self.workdir / 'damaged').iterdir()], ['2', '2-1'])

    def test_reader_goes_on_but_moves_nothing(self):
        self.save_two()
        _overwrite(self.folder / '2', _kernel(2))
        restored, printed = self.restore(self.open(writable=False), _target(_state(0)))
        self.assertEqual(restored.step, 1)
        self.assertRegex(printed, r'^checkpoint 2 is damaged \(checksum of .* differs\); resuming from 1\n$')
        self.assertCountEqual([path.name for path in self.workdir.rglob('[12]')], ['1', '2'])

    def test_all_damaged_is_an_error_that_stays(self):
        self.save_two()
        for step in ('1', '2'):
            _overwrite(self.folder / step, _kernel(int(step)))
        for _ in range(2):  # a second start must not begin from nothing
            with self.assertRaisesRegex(ValueError, rf'Every checkpoint in {self.folder} is damaged \(2: .*; 1: .*\)'):
                self.restore(self.open(), _target(_state(0)))

    @parameterized.product(part=('_read_meta', '_read_arrays'), error=(
        MemoryError(), PermissionError('no'), ValueError('RESOURCE_EXHAUSTED: memory'), OSError('Permission denied')))
    def test_what_may_be_intact_stays(self, part, error):
        self.save_two()
        checkpoints = self.open()
        with (mock.patch.object(checkpoints, part, side_effect=error),
              self.assertRaisesRegex(ValueError, 'could not be read, though it may be intact ')):
            checkpoints.restore(_target(_state(0)))
        self.assertEqual(checkpoints.steps(), [1, 2])
        self.assertFalse((self.workdir / 'damaged').exists())

    @parameterized.parameters(ConnectionError('reset'), PermissionError('no'))
    def test_the_best_stays_though_its_metrics_cannot_be_read_now(self, error):
        writer = self.open(keep=2, best='valid/loss')
        for step in range(1, 5):
            writer.save(step, {'params': jnp.ones(3)}, None, {'valid/loss': float(step)})
        writer.close()
        with (mock.patch.object(checkpoint.Checkpoints, '_read_meta', side_effect=error),
              self.assertRaisesRegex(ValueError, 'could not be read, though it may be intact ')):
            self.open(keep=2, best='valid/loss')
        again = self.open(keep=2, best='valid/loss')
        again.save(5, {'params': jnp.ones(3)}, None, {'valid/loss': 5.0})
        self.assertEqual((again.steps(), again.best_step()), ([1, 4, 5], 1))

    def test_a_step_whose_metrics_are_damaged_is_not_the_best(self):
        writer = self.open(best='valid/loss')
        for step in (1, 2):
            writer.save(step, {'params': jnp.ones(3)}, None, {'valid/loss': float(step)})
        writer.close()
        _flip(self.folder / '1' / 'meta' / 'metadata')
        again = self.open(best='valid/loss')
        self.assertEqual((again.steps(), again.best_step()), ([1, 2], 2))

    def test_chosen_step(self):
        self.save_two()
        checkpoints = self.open()
        self.assertEqual(checkpoints.restore(_target(_state(0)), step=1).step, 1)
        with self.assertRaisesRegex(ValueError, 'no checkpoint 7 .* it holds, 1, 2'):
            checkpoints.restore(_target(_state(0)), step=7)
        _overwrite(self.folder / '2', _kernel(2))
        with self.assertRaisesRegex(ValueError, r'The chosen checkpoint .* is damaged \(2: checksum of '):
            checkpoints.restore(_target(_state(0)), step=2)
        self.assertEqual(checkpoints.steps(), [1, 2])

    def test_a_step_cannot_be_saved_over(self):
        self.save_two()
        for step in (1, 2):
            with self.assertRaisesRegex(ValueError, f'checkpoint {step} cannot be saved .* holds checkpoint 2'):
                self.open().save(step, _state(step), None)

    def test_failed_write_is_one_sentence(self):
        before = set(threading.enumerate())  # reads of other tests may still have theirs
        writer = checkpoint.Checkpoints(self.workdir)
        shutil.rmtree(self.folder)
        self.folder.write_text('a file where the folder was')
        with self.assertRaisesRegex(ValueError, f'could not be written to {self.folder}'):
            writer.save(1, _state(1), None)
            writer.wait()
        left = [t for t in set(threading.enumerate()) - before if not t.daemon]
        for thread in left:
            thread.join(10)  # ends by itself, if not at once
        self.assertEmpty([t for t in left if t.is_alive()])

    @parameterized.parameters((8, 2), (2, 1), (1, 8))
    def test_other_number_of_devices(self, before, after):
        writer = self.open()
        writer.save(1, _state(1, before), None)
        restored = writer.restore(_target(_state(0, after)))
        self.assert_bits_equal(restored.state, _state(1))
        for x, y in zip(jax.tree.leaves(restored.state), jax.tree.leaves(_state(0, after))):
            self.assertEqual(x.sharding, y.sharding)

    def test_part_of_the_state(self):
        self.save_two()
        checkpoints = self.open()
        target = {'params': _target(_state(0))['params']}
        self.assert_bits_equal(checkpoints.restore(target).state, {'params': _state(2)['params']})
        _overwrite(self.folder / '2', _state(2)['optimizer'][0].mu['block_0']['kernel'])
        self.assert_bits_equal(checkpoints.restore(target, step=2).state, {'params': _state(2)['params']})
        _overwrite(self.folder / '2', _kernel(2))
        with self.assertRaisesRegex(ValueError, 'checksum of params/block_0/kernel differs'):
            checkpoints.restore(target, step=2)

    def test_parameters_without_data(self):
        writer, batches = self.open(), _batches()
        writer.save(0, {'params': _state(1)['params']}, None)
        restored = writer.restore({'params': _target(_state(0))['params']}, iterator=batches)
        self.assert_bits_equal(restored.state, {'params': _state(1)['params']})
        np.testing.assert_array_equal(next(batches), next(_batches()))

    def test_another_model_is_told_by_the_differences(self):
        self.save_two()
        zeros = jnp.zeros
        params = {'block_0': {'kernel': zeros((4, 8)), 'bias': zeros(8)}, 'block_1': zeros(2), 'head': zeros((8, 16))}
        with self.assertRaises(ValueError) as raised:
            self.restore(self.open(), _target({'params': params}))
        lines = str(raised.exception).splitlines()
        self.assertStartsWith(lines[0], f'checkpoint 2 in {self.folder} does not fit this model')
        self.assertEqual([[cell.strip() for cell in line.split('|')] for line in lines[1:]], [
            ['the checkpoint has', 'the model has'],
            ['-', 'params/block_0/bias float32[8]'],
            ['params/block_0/kernel float32[400, 8]', 'params/block_0/kernel float32[4, 8]'],
            ['-', 'params/block_1 float32[2]'],
            ['params/head bfloat16[8, 16]', 'params/head float32[8, 16]'],
        ])
        with self.assertRaisesRegex(ValueError, r'params/head bfloat16\[8, 16\] +\| -'):
            self.restore(self.open(), _target({'params': {'block_0': _state(0)['params']['block_0']}}))
        self.assertEqual(self.open().steps(), [1, 2])  # nothing was set aside

    def test_another_data_pipeline_is_not_damage(self):
        self.save_two()
        one = grain.MapDataset.range(40).to_iter_dataset()
        other = iter(grain.IterDataset.mix([one, one], [0.5, 0.5]))
        with self.assertRaisesRegex(ValueError, 'data position of checkpoint 2 .* does not fit this data pipeline'):
            self.restore(self.open(), _target(_state(0)), iterator=other)
        self.assertEqual(self.open().steps(), [1, 2])

    def test_target_needs_shardings(self):
        self.save_two()
        with self.assertRaisesRegex(ValueError, 'counts has no sharding'):
            self.open().restore(jax.eval_shape(lambda: _state(0)))
        self.assertEqual(self.open().steps(), [1, 2])

    @pytest.mark.slow
    def test_killed_while_saving(self):
        code = f"""
            import os, signal
            import jax
            from training import checkpoint
            writer = checkpoint.Checkpoints({str(self.workdir)!r})
            big = {{'params': jax.random.normal(jax.random.key(0), (12_000_000,))}}
            writer.save(1, {{'params': jax.numpy.ones(3)}}, None)
            writer.wait()
            writer.save(2, jax.block_until_ready(big), None)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        root = pathlib.Path(__file__).parents[2]
        child = subprocess.run([sys.executable, '-c', textwrap.dedent(code)], cwd=root, check=False)
        self.assertEqual(child.returncode, -signal.SIGKILL)
        left = [path.name for path in self.folder.iterdir()]
        self.assertLen(left, 2)
        self.assertNotIn('2', left)

        target = {'params': jax.device_put(jnp.zeros(3), jax.devices()[0])}
        self.assertEqual(self.open(writable=False).restore(target).step, 1)
        self.assertLen(list(self.folder.iterdir()), 2)
        writer = self.open()
        restored, printed = self.restore(writer, target)
        self.assertEqual((restored.step, printed), (1, ''))
        writer.save(3, target, None)  # a save of step 2 would remove its own leftover
        writer.wait()
        self.assertCountEqual([path.name for path in self.folder.iterdir()], ['1', '3'])


if __name__ == '__main__':
    absltest.main()
