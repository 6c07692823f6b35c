import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.attention.context import Context, Source
from transformer.layers.block import Block
from transformer.layers.norm import LayerNorm

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
PLAIN = {'scale': np.ones(4, np.float32)}  # of a norm
NORMS = {'attention_norm': PLAIN, 'feed_forward_norm': PLAIN}


class Attention(nn.Module):
    """Stands for attention: adds what it was given, so that a test sees what arrives."""

    def __call__(self, x, *, context, key, cache, head_mask):
        told = {'weights': context.mask} if context.capture else {}
        return x * context.mask + context.positions + (0 if head_mask is None else head_mask), cache and {
            'seen': cache['seen'] + 1}, told


class Cross(nn.Module):
    """Stands for attention to a source."""

    def __call__(self, x, source, *, context, key, projected, head_mask):
        told = {'weights': 2 * context.mask} if context.capture else {}
        source = projected if source is None else source
        return x * source * context.mask + (0 if head_mask is None else head_mask), source, told


class Double(nn.Module):
    """Stands for a feed-forward, which tells something."""

    def __call__(self, x, *, key=None):
        return 2 * x, {'doubled': x}


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


BLOCK = Block(Attention, Double, norm=LayerNorm(epsilon=1e-6, bias=False))


class BlockTest(parameterized.TestCase):
    def test_is_pre_norm_with_two_residual_branches(self):
        context = Context(mask=3.0, positions=0.5)
        y, cache, told = BLOCK.apply({'params': NORMS}, X, context, cache={'seen': 0})
        middle = X + norm(X) * 3.0 + 0.5
        np.testing.assert_allclose(y, middle + 2 * norm(middle), atol=1e-5)
        self.assertEqual(cache, {'seen': 1})
        np.testing.assert_allclose(told.pop('doubled'), norm(middle), atol=1e-5)
        self.assertEqual(told, {})
        self.assertIsNone(BLOCK.apply({'params': NORMS}, X, context)[1])

    def test_looks_at_a_source_in_a_third_branch(self):
        block = BLOCK.clone(cross_attention=Cross)
        params = {'params': NORMS | {'cross_attention_norm': PLAIN}}
        context = Context(mask=3.0, positions=0.5, head_mask={'attention': 0.25, 'cross_attention': 0.125},
                          source=Source(7.0, 1.5), capture=('attention',))
        y, cache, told = block.apply(params, X, context, cache={'seen': 0})
        middle = X + norm(X) * 3.0 + 0.75
        middle = middle + norm(middle) * 7.0 * 1.5 + 0.125
        np.testing.assert_allclose(y, middle + 2 * norm(middle), rtol=1e-5, atol=1e-5)
        self.assertEqual(cache, {'seen': 1, 'source': 7.0})
        self.assertEqual((told['attention'], told['cross_attention']), (3.0, 3.0))
        later = Context(mask=3.0, positions=0.5, head_mask=context.head_mask, source=Source(None, 1.5))
        again, cache, told = block.apply(params, X, later, cache=cache)
        np.testing.assert_array_equal(again, y)
        self.assertEqual((cache, set(told)), ({'seen': 2, 'source': 7.0}, {'doubled'}))

    def test_dropout_reaches_each_branch_with_a_key_of_its_own(self):
        block = BLOCK.clone(dropout=0.5)
        context = Context(mask=3.0, positions=0.0)
        apply = lambda block, key: block.apply({'params': NORMS}, X, context, key=key)[0]
        self.assertTrue(jnp.array_equal(apply(block, None), apply(BLOCK, None)))
        self.assertTrue(jnp.array_equal(apply(block, KEY), apply(block, KEY)))
        self.assertFalse(jnp.array_equal(apply(block, KEY), apply(block, jax.random.key(1))))


if __name__ == '__main__':
    absltest.main()
