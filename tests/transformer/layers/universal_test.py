import functools
import math

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests import models
from tests.models import apply, build, changed
from transformer.attention.context import Context
from transformer.attention.masks.patterns import Alternate, Causal, Window
from transformer.explain import maps
from transformer.layers.feed_forward import Mlp
from transformer.layers.universal import Groups, Own, Universal, steps
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken

KEY = jax.random.key(0)
MODEL = build(Gpt, vocab=11, length=8, layers=3, heads=2, width=8, feed_forward=Mlp(inner=8), depth=Universal())
TOKENS = np.random.default_rng(0).integers(11, size=(2, 8))
drawn = lambda model: models.drawn(model, TOKENS)
X = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)


class Twist(nn.Module):
    """A block of its own kind: tanh(2 x) + 0.5."""

    def __call__(self, x, context, **given):
        return jax.numpy.tanh(2 * x) + 0.5, None, {'mean': x.mean()}


class Twists(nn.Module):
    depth: Universal
    layers: int = 4

    @nn.compact
    def __call__(self, x):
        return steps(self.depth, Twist, self.layers, x, Context())


def signal(t, width):
    return np.array([f(t / 10000 ** (2 * i / width)) for i in range(width // 2) for f in (math.sin, math.cos)])


def adaptive(x, kernel, bias, threshold, layers):
    """(y, N + R) of one position x [D], in float64: the formulas of `Universal`."""
    states, chances = [], []
    for t in range(1, layers + 1):
        x = x + signal(t, len(x))
        chances.append(1 / (1 + math.exp(-(x @ kernel + bias))))
        x = np.tanh(2 * x) + 0.5
        states.append(x)
        if sum(chances) > threshold or t == layers:
            remainder = 1 - sum(chances[:-1])
            return sum(p * h for p, h in zip([*chances[:-1], remainder], states)), t + remainder


class HaltingTest(parameterized.TestCase):
    @parameterized.parameters((0.99, -1.0), (0.6, 0.0), (1.0, 1.0))
    def test_equals_the_formulas(self, threshold, bias):
        kernel = np.array([2.0, -2.0, 2.0, -2.0])
        module = Twists(Universal(halting=True, threshold=threshold, bias=bias))
        y, _, more = module.apply({'params': {'halting': {'kernel': kernel[:, None], 'bias': np.zeros(1)}}}, X)
        taken = set()
        for row, place in np.ndindex(2, 3):
            wanted, ponder = adaptive(X[row, place].astype(float), kernel, bias, threshold, 4)
            np.testing.assert_allclose(y[row, place], wanted, atol=1e-5)
            self.assertAlmostEqual(float(more['ponder'][row, place]), ponder, places=4)
            taken.add(int(ponder))
        self.assertGreater(len(taken), 1)  # positions stop at different steps
        self.assertEqual(set(more), {'ponder'} | {f'block_{t}/mean' for t in range(4)})
        np.testing.assert_allclose(more['block_0/mean'], (X + signal(1, 4)).mean(), atol=1e-6)

    def test_never_stopping_is_no_halting_and_stopping_at_once_is_one_step(self):
        params = drawn(MODEL)
        with_halting = params | {'halting': {'kernel': np.zeros((8, 1), np.float32), 'bias': np.zeros(1, np.float32)}}
        never, once = (apply(changed(MODEL, depth=Universal(halting=True, bias=bias)), with_halting, TOKENS)
                       for bias in (-90, 90))
        np.testing.assert_allclose(never['logits'], apply(MODEL, params, TOKENS)['logits'], atol=2e-6)
        np.testing.assert_allclose(never['ponder'], 4.0)  # three steps and a remainder of 1
        np.testing.assert_allclose(once['logits'], apply(changed(MODEL, layers=1), params, TOKENS)['logits'], atol=2e-6)
        np.testing.assert_allclose(once['ponder'], 2.0)

    @pytest.mark.slow
    def test_a_task_charges_for_steps(self):
        model = changed(MODEL, depth=Universal(halting=True))
        segments = (np.arange(8) < np.array([8, 5])[:, None]).astype(int)
        batch = {'inputs': TOKENS, 'targets': TOKENS, 'segments': segments, 'weights': segments * 1.0,
                 'positions': np.broadcast_to(np.arange(8), (2, 8))}
        task, params = NextToken(ponder=0.1), drawn(model)
        self.assertEqual(task.coefficients, {'cross_entropy': 1.0, 'ponder': 0.1})
        self.assertEqual(NextToken(ponder=0.1, label_smoothing=0.2).coefficients,
                         {'cross_entropy': 0.8, 'uniform': 0.2, 'ponder': 0.1})
        loss = lambda task, params, model=model: task.loss(functools.partial(model.apply, {'params': params}), batch, key=None,
                                                           step=0, train=False)
        terms = jax.jit(functools.partial(loss, task))(params)
        ponder = apply(model, params, TOKENS, segments=segments, positions=batch['positions'])['ponder']
        np.testing.assert_allclose(terms['ponder'], [float((ponder * segments).sum()), 13.0], rtol=1e-5)
        self.assertIn('ponder', loss(NextToken(), params))  # a metric where nothing is charged
        slope = jax.jit(jax.grad(lambda p: loss(task, p)['ponder'][0]))(params)['halting']
        self.assertGreater(np.abs(slope['kernel']).max(), 1e-3)
        with self.assertRaisesRegex(ValueError, 'charges for steps, but .* everywhere; .* set model.depth,'):
            loss(task, drawn(MODEL), MODEL)


class SharedTest(parameterized.TestCase):
    def test_one_block_has_all_parameters(self):
        names = set(jax.eval_shape(lambda: MODEL.init(KEY, TOKENS)['params']))
        self.assertEqual(names, {'tokens', 'positions', 'block_0', 'norm'})

    @parameterized.parameters(False, True)
    def test_cached_decoding_equals_the_full_forward(self, halting):
        model = changed(MODEL, depth=Universal(halting=halting))
        params = drawn(model)
        whole = apply(model, params, TOKENS)['logits']
        row = lambda first, last: np.broadcast_to(np.arange(first, last), (2, last - first))
        out = apply(model, params, TOKENS[:, :3], positions=row(0, 3), cache=model.init_cache(2))
        np.testing.assert_allclose(out['logits'], whole[:, :3], atol=5e-6)
        for t in range(3, 8):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=row(t, t + 1), cache=out['cache'])
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], atol=5e-6)

    def test_the_weights_of_every_step_are_shown(self):
        def shown(model):
            outputs = apply(model, params, TOKENS[:1], capture=('attention',))
            return maps.read(model, {name: x for name, x in outputs.items() if name.endswith('attention')})
        params = drawn(MODEL)
        layers, found = shown(MODEL)
        self.assertEqual([one['layer'] for one in found], ['block_0', 'block_1', 'block_2'])
        self.assertGreater(np.abs(layers['block_1'] - layers['block_2']).max(), 1e-3)
        for name, weights in shown(changed(MODEL, layers=2))[0].items():  # the first two of three
            np.testing.assert_allclose(layers[name], weights, atol=1e-6)

    @parameterized.parameters(dict(scan=True), dict(remat='full'))
    def test_what_needs_blocks_of_their_own_is_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, 'has one block'):
            jax.eval_shape(lambda: changed(MODEL, **fields).init(KEY, TOKENS))

    def test_heads_of_one_block_cannot_be_pruned(self):
        for depth in (Universal(), Groups()):
            with self.assertRaisesRegex(ValueError, 'has layers that share their heads, which cannot be pruned; leave out'):
                changed(MODEL, depth=depth, kept=((0,), (0,), (0,)))

    def test_thresholds_are_probabilities(self):
        with self.assertRaisesRegex(ValueError, 'threshold is 1.5'):
            Universal(threshold=1.5)


def repeated(params, each):
    """The parameters of a model whose layers have their own, each group's as often as it has layers."""
    found = dict(params)
    for i in range(4):
        found[f'block_{i}'] = params[f'block_{i // each}']
    return found


class GroupsTest(parameterized.TestCase):
    MODEL = changed(MODEL, depth=Own(), layers=4, dropout=0.2, mask=Alternate(Causal(), Causal() & Window(2)))
    MASK = {'attention': np.random.default_rng(1).random((4, 2, 1, 2))}

    def loss(self, model):
        """params -> (a loss with dropout and factors of heads, the outputs with every layer's attention)."""
        def loss(params):
            outputs = model.apply({'params': params}, TOKENS, key=KEY, head_mask=self.MASK, capture=('attention',))
            return (outputs['logits'] ** 2).mean(), outputs
        return loss

    @parameterized.parameters((1, {}), (2, {}), (2, dict(scan=True, remat='full')), (2, dict(remat='full')))
    def test_equal_layers_of_their_own(self, groups, choice):
        model, each = changed(self.MODEL, depth=Groups(groups), **choice), 4 // groups
        params = drawn(model)
        self.assertEqual({name for name in params if 'block' in name}, {f'block_{i}' for i in range(groups)})
        gradient, found = jax.jit(jax.grad(self.loss(model), has_aux=True))(params)
        apart, wanted = jax.jit(jax.grad(self.loss(self.MODEL), has_aux=True))(repeated(params, each))
        self.assertIn('block_3/attention', wanted)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, wanted)
        for group in range(groups):  # the sum over its layers
            summed = jax.tree.map(lambda *x: sum(x), *(apart[f'block_{group * each + i}'] for i in range(each)))
            jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), gradient[f'block_{group}'], summed)

    def test_all_layers_in_one_scan(self):
        model = changed(self.MODEL, depth=Groups(), scan=True, remat='dots')
        params = drawn(model)
        found, wanted = (jax.jit(self.loss(one))(params)[1] for one in (model, changed(model, scan=False, remat='none')))
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, wanted)

    def test_parameters_begin_alike_for_every_choice(self):
        model = changed(self.MODEL, depth=Groups(2))
        jax.tree.map(np.testing.assert_array_equal, *(one.init(KEY, TOKENS)['params'] for one in (
            model, changed(model, scan=True, remat='full'))))

    def test_cached_decoding_equals_the_full_forward(self):
        model = changed(self.MODEL, depth=Groups(2))
        params = drawn(model)
        whole = apply(model, params, TOKENS)['logits']
        row = lambda first, last: np.broadcast_to(np.arange(first, last), (2, last - first))
        out = apply(model, params, TOKENS[:, :5], positions=row(0, 5), cache=model.init_cache(2))
        for t in range(5, 8):
            out = apply(model, params, TOKENS[:, t:t + 1], positions=row(t, t + 1), cache=out['cache'])
            np.testing.assert_allclose(out['logits'][:, 0], whole[:, t], atol=5e-6)

    def test_groups_of_unequal_size_are_refused(self):
        with self.assertRaisesRegex(ValueError, '4 layers cannot be divided into the equal groups of depth=Groups.groups=3.; '
                                                'choose a multiple of 3'):
            changed(self.MODEL, depth=Groups(3))
        with self.assertRaisesRegex(ValueError, 'expected 1 group or more'):
            Groups(0)
        model = changed(self.MODEL, layers=6, depth=Groups(2))
        with self.assertRaisesRegex(ValueError, 'scan: 3 layers cannot be scanned under .* which repeat after 2'):
            changed(model, scan=True).apply({'params': drawn(model)}, TOKENS)


if __name__ == '__main__':
    absltest.main()
