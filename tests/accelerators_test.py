"""Every config's step, every kernel and mechanism, compiled for TPUs, and the kernels of GPUs for an H100: `make
test-accelerators`, with the compiler for TPUs; that for GPUs, 4 GB, is used where jax[cuda13] is installed too."""

import functools

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks import hlo, plan, topologies
from tests import experiments, mechanisms, programs
from training import mesh as meshes
from transformer.attention.kernels import rows
from transformer.attention.kernels.attend import attend
from transformer.attention.masks.data import Padding
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanism import Given
from transformer.layers.activations import GeluTanh, activated
from transformer.layers.numerics import Numerics

pytestmark = pytest.mark.accelerators
FOR_TPU, FOR_GPU = (pytest.mark.skipif(not topologies.available(kind), reason=f'{topologies.EXTRAS[kind]} is not installed')
                    for kind in ('tpu', 'gpu'))
BFLOAT16 = Numerics('bfloat16')


@FOR_TPU
class StepsTest(parameterized.TestCase):

    @parameterized.parameters(*programs.NAMES)
    def test_a_step_does_what_is_on_record(self, name):
        found, wanted = programs.program(name), programs.recorded()[name]
        self.assertGreater(found['traffic_gb'], 0)
        self.assertTrue(found['collectives'])
        self.assertEmpty(programs.differences(found, wanted), '\n'.join([f'\n{name}', f'{found=}', f'{wanted=}', (
            f'If that was meant: .venv-plan/bin/python -m tests.programs {name}')]))

    def test_every_one_is_on_record(self):
        self.assertEqual(list(programs.recorded()), list(programs.NAMES))


@FOR_TPU
class PlanTest(experiments.TestCase):

    def test_a_kernel_of_the_config_is_one_for_the_chips_of_the_plan(self):
        mesh = meshes.make(1, 1, 1, topologies.devices_of(programs.TOPOLOGY)[:1])
        config = lambda kernel: experiments.tiny(self.text, **{'model.attention': f"Softmax(implementation='{kernel}')"})
        self.assertEqual(plan.built(config('rows'), mesh).mesh, mesh)
        with self.assertRaisesRegex(ValueError, "The kernel 'cudnn' cannot do this: it needs a GPU, and this is tpu"):
            plan.built(config('cudnn'), mesh)


@FOR_TPU
class MeshTest(absltest.TestCase):

    def test_parameters_are_gathered_before_they_are_multiplied(self):
        mesh = meshes.make(1, 4, 1, topologies.devices_of('v5e:2x2'))
        x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec('fsdp')))
                for shape in ((16384, 1024), (1024, 8192)))

        def traffic(options):
            step = jax.jit(jax.grad(lambda x, w: jnp.square(jax.nn.relu(x @ w)).sum(), 1), out_shardings=w.sharding,
                           compiler_options=options)
            with jax.set_mesh(mesh):
                program = hlo.Program(step.trace(x, w).lower().compile().as_text())
            return program.traffic(), [one.kind for one in program.collectives()].count('all-gather')

        (ring, none), (whole, one) = traffic({}), traffic(meshes.compiler_options(mesh))
        self.assertEqual((none, one), (0, 1))
        self.assertLess(whole, ring / 5)


def compiled(topology, function, *shapes):
    """The program of the gradients of sum(function(*arrays)^2) on one chip of a slice."""
    mesh = meshes.make(1, 1, 1, topologies.devices_of(topology)[:1])
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=meshes.replicated(mesh)) for shape, dtype in shapes]
    wanted = tuple(range(len(arrays)))
    with jax.set_mesh(mesh):
        gradients = jax.jit(jax.grad(lambda *given: jnp.square(function(*given).astype(jnp.float32)).sum(), wanted))
        return hlo.Program(gradients.trace(*arrays).lower().compile().as_text())


@FOR_TPU
class KernelsTest(parameterized.TestCase):

    @parameterized.product(mask=(Full(), Causal(), Causal() & Window(size=128)), kernel=(
        ('plain', 'bfloat16'), ('blockwise', 'bfloat16'), ('rows', 'bfloat16'), ('rows', 'float32'), ('splash', 'bfloat16'),
        ('splash', 'float32')))
    def test_a_kernel(self, mask, kernel):
        implementation, dtype = kernel
        program = compiled(programs.TOPOLOGY,
            functools.partial(attend, mask=mask, implementation=implementation, numerics=Numerics(dtype)),
            ((2, 512, 4, 64), dtype), ((2, 512, 2, 64), dtype), ((2, 512, 2, 64), dtype))
        self.assertEqual('custom-call' in program.operations(), implementation in ('rows', 'splash'))

    @parameterized.parameters(
        ('v6e:2x2', 8192, 128, 'bfloat16', 2), ('v5e:2x2', 8192, 64, 'bfloat16', 2), ('v5p:2x2x1', 6144, 128, 'bfloat16', 2),
        ('v5e:2x2', 4096, 128, 'float32', 2), ('v5p:2x2x1', 4096, 256, 'bfloat16', 2), ('v5e:2x2', 8192, 128, 'float32', 3))
    def test_the_largest_blocks_of_splash_attention_fit_beside_the_processor(self, topology, length, width, dtype, kernels):
        program = compiled(
            topology, functools.partial(attend, mask=Causal(), implementation='splash', numerics=Numerics(dtype)),
            ((1, length, 4, width), dtype), *[((1, length, 2, width), dtype)] * 2)
        self.assertEqual(program.operations()['custom-call'], kernels)

    @parameterized.parameters(
        ('v4:2x2x1', 1024, 1024, 12, 12, 64), ('v5e:2x2', 1024, 1024, 25, 25, 64), ('v5p:2x2x1', 512, 512, 32, 32, 128, True),
        ('v6e:2x2', 512, 512, 32, 8, 128), ('v5e:2x2', 197, 197, 3, 3, 64), ('v5e:2x2', 49, 49, 3, 3, 32, True),
        ('v5e:2x2', 1, 577, 16, 16, 80), ('v5e:2x2', 1500, 1024, 4, 4, 64))
    def test_rows_of_other_sizes(self, topology, queries, keys, heads, key_heads, width, more=False):
        def function(query, key, value, *bias):
            given = dict(rate=0.1, dropout_key=jax.random.key(0)) if more else {}
            mask = Causal() & Padding(jnp.array([5, 7])) if queries == keys else Full()
            return attend(query, key, value, mask=mask, bias=bias, implementation='rows', numerics=BFLOAT16, **given)
        bias = [((heads, queries, keys), 'float32')] if more else []
        row = lambda length, heads: ((2, length, heads, width), 'bfloat16')
        program = compiled(topology, function, row(queries, heads), row(keys, key_heads), row(keys, key_heads), *bias)
        self.assertEqual(program.operations()['custom-call'], 2)

    def test_the_longest_rows_that_it_takes_fit_beside_the_processor(self):
        for dtype, biased, heads, width in (('bfloat16', False, 3, 128), ('bfloat16', True, 6, 64), ('float32', False, 12, 32)):
            row = lambda length: jax.ShapeDtypeStruct((2, length, heads, width), dtype)  # noqa: B023
            given = dict(mask=Causal(), bias=(jnp.ones(()),) * biased, numerics=Numerics(dtype))
            length = max(length for length in range(128, 2049, 128) if not rows.lacks(row(length), row(length), **given))
            function = lambda *arrays: rows.rows(*arrays[:3], **given | {'bias': arrays[3:]})  # noqa: B023
            array, bias = ((2, length, heads, width), dtype), ((heads, length, length), 'float32')
            program = compiled('v5e:2x2', function, *[array] * 3, *[bias] * biased)
            self.assertEqual(program.operations()['custom-call'], 2)

    @parameterized.product(name=tuple(mechanisms.CASES), dtype=('bfloat16', 'float32'))
    def test_a_mechanism(self, name, dtype):
        mechanism = mechanisms.CASES[name]
        arrays = [jax.ShapeDtypeStruct((2, 16, 4, 8), dtype)] * 3
        parameters = mechanism.parameters(*mechanisms.used(mechanism, *arrays))
        mask = Full() if not mechanism.causal else Causal()
        program = compiled(programs.TOPOLOGY,
            lambda q, k, v, *given: mechanism(dict(zip(parameters, given)), *mechanisms.used(mechanism, q, k, v),
                                              Given(mask, numerics=Numerics(dtype))),
            *((one.shape, dtype) for one in (*arrays, *parameters.values())))
        self.assertGreater(program.traffic(), 0)


def fused(program):
    """The number of calls of cuDNN's attention."""
    return sum('__cudnn$fmha' in one.attributes for part in program.computations.values() for one in part.values())


@FOR_GPU
class GpuTest(parameterized.TestCase):

    @parameterized.parameters(
        (Full(), 'cudnn'), (Causal(), 'cudnn'), (Causal() & Window(size=128), 'cudnn'), (Window(size=128), 'cudnn'),
        (Full(), 'cudnn', 197), (Causal(), 'cudnn', 197), (Window(size=5), 'cudnn', 197), (Causal(), 'plain'),
        (Causal(), 'blockwise'))
    def test_a_kernel(self, mask, implementation, length=512):
        program = compiled(
            'h100:1', functools.partial(attend, mask=mask, implementation=implementation, numerics=Numerics('bfloat16')),
            *(((2, length, 4, 64), 'bfloat16'),) * 3)
        self.assertEqual(fused(program), 2 if implementation == 'cudnn' else 0)

    def test_a_bias_that_all_rows_share(self):
        function = lambda *given: attend(*given[:3], bias=given[3:], implementation='cudnn', numerics=BFLOAT16)
        program = compiled('h100:1', function, *(((2, 512, 4, 64), 'bfloat16'),) * 3, ((4, 512, 512), 'float32'))
        self.assertEqual(fused(program), 2)

    def test_no_inner_activation_is_stored_in_float32(self):
        program = compiled(
            'h100:1', lambda x, kernel, output: activated(GeluTanh(), x @ kernel) @ output,
            *((shape, 'bfloat16') for shape in ((4096, 256), (256, 1024), (1024, 256))))
        self.assertEmpty([one.source for one, *_ in program.executed() for x in one.arrays
                          if x.bits == 32 and x.dims == (4096, 1024)])


if __name__ == '__main__':
    absltest.main()
