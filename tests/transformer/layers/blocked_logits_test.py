"""Logits in blocks (transformer/layers/heads.py): sums, gradients and memory, against whole logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType

from tests import experiments
from training import mesh as meshes
from training import run as runs
from training import step as steps
from training.report import flops
from transformer.layers.heads import BlockedLogits, Classes, NextWordsAndChoice
from transformer.layers.numerics import Numerics
from transformer.layers.stack import Stack
from transformer.models.gpt import Gpt
from transformer.tasks.base import VALUES
from transformer.tasks.language_model import NextToken, SequenceToSequence

B, T, D, V = 8, 12, 6, 11
RNG = np.random.default_rng(0)
TERMS = {term: VALUES[term] for term in ('cross_entropy', 'uniform', 'log_z_squared', 'accuracy')}
COEFFICIENTS = {'cross_entropy': 0.9, 'uniform': 0.1, 'log_z_squared': 0.01}


def arrays(dtype=np.float64):
    x, w, b = (RNG.normal(size=shape).astype(dtype) for shape in ((B, T, D), (D, V), (V,)))
    return x, w, b, RNG.integers(0, V, (B, T)), (RNG.random((B, T)) < 0.7).astype(dtype)


def loss(x, w, b, targets, weights, block, numerics, coefficients=COEFFICIENTS):
    if block:
        sums = BlockedLogits(x, w, b, block, numerics).sums(TERMS, coefficients, targets, weights)
    else:
        logits = numerics.dense(x, w) + (0 if b is None else b)
        sums = {term: (weights * value(logits, targets)).sum() for term, value in TERMS.items()}
    return sum(3.0 * factor * sums[term] for term, factor in coefficients.items()), sums


def outcome(args, block, numerics, **more):
    function = functools.partial(loss, block=block, numerics=numerics, **more)
    there = (0, 1) if args[2] is None else (0, 1, 2)
    return jax.jit(jax.value_and_grad(function, argnums=there, has_aux=True))(*args)


class SumsTest(parameterized.TestCase):

    @parameterized.product(block=(1, 4, 5, 12, 100), bias=(True, False))
    def test_the_same_in_float64(self, block, bias):
        with jax.enable_x64(True):
            x, w, b, *rest = arrays()
            args = x, w, b if bias else None, *rest
            numerics = Numerics('float64', parameter_dtype='float64')
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12),
                         outcome(args, block, numerics), outcome(args, 0, numerics))

    def test_on_a_mesh(self):
        with jax.enable_x64(True):
            args, numerics = arrays(), Numerics('float64', parameter_dtype='float64')
            expected = outcome(args, 0, numerics)
            for sizes in ((2, 2, 2), (8, 1, 1), (1, 4, 2)):
                mesh = jax.make_mesh(sizes, meshes.AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])
                with jax.set_mesh(mesh):
                    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12),
                                 outcome(args, 5, numerics), expected)

    def test_bfloat16_is_as_near_as_whole_logits(self):
        args, numerics = arrays(np.float32), Numerics('bfloat16')
        with jax.enable_x64(True):
            exact = np.asarray(outcome(tuple(np.float64(x) if x.dtype == np.float32 else x for x in args), 0,
                                       Numerics('float64', parameter_dtype='float64'))[1][1])
        errors = [np.abs(np.float64(outcome(args, block, numerics)[1][1]) - exact).max() for block in (4, 0)]
        self.assertLess(errors[0], 2 * errors[1])

    def test_a_term_of_the_loss_alone(self):
        args, numerics = arrays(np.float32), Numerics()
        for coefficients in ({'cross_entropy': 1.0}, {'uniform': 2.0}):
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
                         outcome(args, 4, numerics, coefficients=coefficients),
                         outcome(args, 0, numerics, coefficients=coefficients))

    def test_memory(self):
        rows = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
            ((4, 64, 8), jnp.float32), ((8, 4096), jnp.float32), ((4, 64), jnp.int32), ((4, 64), jnp.float32)))

        def temporaries(block):
            function = lambda x, w, targets, weights: loss(x, w, None, targets, weights, block, Numerics())[0]
            compiled = jax.jit(jax.grad(function, argnums=(0, 1))).lower(*rows).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        self.assertGreater(temporaries(0), 4 * 4 * 64 * 4096)
        self.assertLess(temporaries(4), temporaries(0) / 4)

    def test_the_products_are_not_more(self):
        args, numerics = arrays(np.float32), Numerics()
        count = lambda block: flops.count(
            jax.grad(lambda *a: loss(*a, block=block, numerics=numerics)[0], argnums=(0, 1)), *args)
        self.assertEqual(count(4), count(0))


class TaskTest(experiments.TestCase):

    def gradients(self, config):
        mesh = meshes.make(1, 1, 1, jax.devices()[:1])
        run = runs.build(config, mesh)
        batch = {name: np.asarray(x) for name, x in next(run.data.train(0)).items()}
        return steps.gradients(run.model, run.task, run.init().params, batch, key=jax.random.key(1), step=0, microbatches=2)[:3]

    @parameterized.parameters(
        (experiments.tiny, {}), (experiments.tiny, {'model.head': 'NextWords(tied=False, bias=True)', 'task.z_loss': 1e-3}),
        (experiments.tiny_pairs, {'task.label_smoothing': 0.1, 'model.head': 'NextWords(added=True, scaled=True)'}))
    def test_training_is_the_same(self, config, changes):
        if config is experiments.tiny_pairs:
            self.text.write_text(experiments.pairs(80))
        with jax.enable_x64(True):
            blocked, whole = (self.gradients(config(self.text, **changes, **{
                'dtype': 'float64', 'parameter_dtype': 'float64', 'task.block': block})) for block in (3, 0))
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), blocked, whole)

    def test_evaluation_has_whole_logits(self):
        self.assertEqual(NextToken(block=4).options(train=False), {})
        self.assertEqual(SequenceToSequence(block=4).options(train=True), {'block': 4})

    def test_what_cannot_be(self):
        with self.assertRaisesRegex(ValueError, 'block is -1; expected a number of positions'):
            NextToken(block=-1)
        for head in (Classes(classes=2), NextWordsAndChoice()):
            model = Gpt(vocab=9, length=8, stack=Stack(layers=1, heads=2, width=8, mask=Gpt.stack.mask), head=head)
            with self.assertRaisesRegex(ValueError, rf'{type(head).__name__}\(.*whose logits are whole; set task.block=0'):
                model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32), block=2)


if __name__ == '__main__':
    absltest.main()
