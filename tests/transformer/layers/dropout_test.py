import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests import models
from tests.marks import slow_but
from transformer.attention.context import Context
from transformer.attention.masks.patterns import Alternate, Causal, Full
from transformer.attention.positions.base import NoPositions
from transformer.layers.dropout import drop_path
from transformer.layers.numerics import Numerics
from transformer.layers.residual import NoNorm
from transformer.layers.stack import Stack
from transformer.layers.universal import Groups, Universal

KEY = jax.random.key(0)


class DropPathTest(parameterized.TestCase):
    @parameterized.parameters('float32', 'bfloat16')
    def test_drops_whole_examples_and_scales_the_rest(self, dtype):
        x = jnp.ones((20_000, 2, 3), dtype)
        y = drop_path(x, 0.25, KEY)
        self.assertEqual(y.dtype, dtype)
        self.assertTrue(jnp.array_equal(y, jnp.broadcast_to(y[:, :1, :1], x.shape)))
        self.assertAlmostEqual(float((y[:, 0, 0] == 0).mean()), 0.25, delta=5 * (0.25 * 0.75 / 20_000) ** 0.5)
        np.testing.assert_allclose(np.unique(np.asarray(y, np.float32)), [0.0, 4 / 3], rtol=4e-3)

    def test_without_key_or_rate_nothing_happens(self):
        x = jnp.arange(5.0)
        for rate, key in ((0.5, None), (None, KEY), (0.0, KEY), (jnp.zeros(()), KEY)):
            np.testing.assert_array_equal(drop_path(x, rate, key), x)


class Tower(nn.Module):
    """A stack alone."""
    stack: Stack

    @nn.compact
    def __call__(self, x, key=None):
        return self.stack(x, Context(self.stack.mask), numerics=Numerics(), key=key)[0]


# Each of the eight branches of four layers adds 1 to a coordinate of its own, by its bias; all other parameters are 0.
STACK = Stack(layers=4, heads=1, width=8, positions=NoPositions(), residual=NoNorm(), drop_path=0.6)
X = np.zeros((3000, 1, 8), np.float32)


def outputs(stack, key, seen=1.0):
    """What a stack makes of zeros if its branches add `seen`, [rows, D]."""
    tower = Tower(stack)
    params = jax.tree.map(np.zeros_like, models.drawn(tower, X[:1]))
    for i in range(stack.depth.blocks(4)):
        for coordinate, branch in ((2 * i, 'attention'), (2 * i + 1, 'feed_forward')):
            params[f'block_{i}'][branch]['output']['bias'] = seen * np.eye(8, dtype=np.float32)[coordinate]
    return np.asarray(jax.jit(tower.apply)({'params': params}, X, key))[:, 0]


@slow_but('test_the_rate_rises_linearly', 'unrolled', 'full_scan')
class StackTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ('unrolled', {}), ('scan', dict(scan=True)), ('full', dict(remat='full')), ('dots', dict(remat='dots')),
        ('full_scan', dict(scan=True, remat='full')), ('alternating', dict(scan=True, mask=Alternate(Causal(), Full()))),
        ('groups', dict(depth=Groups(2))), ('groups_scan', dict(depth=Groups(2), scan=True)), ('universal', dict(
            depth=Universal())), ('constant', dict(constant_drop_path=True)))
    def test_the_rate_rises_linearly(self, choice):
        """Each branch is left out with the rate of its layer, for attention and feed-forward alike, independently of others."""
        stack = dataclasses.replace(STACK, **choice)
        found = outputs(stack, KEY) - outputs(stack, KEY, seen=0.0)
        rates = (0.6,) * 4 if stack.constant_drop_path else (0.0, 0.2, 0.4, 0.6)
        each = 4 // stack.depth.blocks(4)
        for block in range(4 // each):
            own = rates[each * block:each * (block + 1)]
            sums = [sum(kept) for kept in itertools.product(*((0.0, 1 / (1 - rate)) for rate in own))]
            chances = [np.prod(chosen) for chosen in itertools.product(*((rate, 1 - rate) for rate in own))]
            for branch in found[:, 2 * block], found[:, 2 * block + 1]:
                near = np.abs(branch[:, None] - np.array(sums))
                self.assertLess(near.min(1).max(), 1e-5)
                self.assertAlmostEqual(branch.mean(), len(own), delta=5 * branch.std() / len(X) ** 0.5 + 1e-5)
                self.assertAlmostEqual(float((branch == 0).mean()), chances[0], delta=0.05 if chances[0] else 0.0)
        moving = found[:, found.std(0) > 1e-5]
        np.testing.assert_allclose(np.corrcoef(moving.T), np.eye(moving.shape[1]), atol=0.1)
        np.testing.assert_allclose(outputs(stack, KEY), outputs(dataclasses.replace(stack, scan=False, remat='none'), KEY),
                                   rtol=1e-6)

    def test_without_a_key_all_branches_are_there(self):
        np.testing.assert_array_equal(outputs(STACK, None), np.ones((3000, 8)))

    def test_a_single_block_has_the_first_rate(self):
        self.assertEqual(Stack(layers=1, drop_path=0.5).rates.paths, ())
        self.assertEqual(Stack(layers=1, drop_path=0.5, constant_drop_path=True).rates.paths, (0.5,))

    def test_without_a_rate_there_is_none_in_any_block(self):
        self.assertEqual(Stack(layers=3, constant_drop_path=True).rates.paths, ())

    @parameterized.parameters(1.0, -0.1)
    def test_a_rate_outside_0_to_1_is_refused(self, rate):
        with self.assertRaisesRegex(ValueError, rf'^drop_path is {rate}; expected a rate in \[0, 1\)'):
            Stack(drop_path=rate)


if __name__ == '__main__':
    absltest.main()
