import dataclasses
import re
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from hypothesis import strategies

from tests.transformer.attention.masks.patterns_test import PATTERNS
from transformer.attention.kernels.attend import attend, mixed, plain, weights_of
from transformer.attention.kernels.blockwise import SIZES, blockwise, milliseconds, size_for
from transformer.attention.kernels.terms import Term
from transformer.attention.masks.data import Explicit, Marked, Padding, Segments
from transformer.attention.masks.patterns import Causal, Full, Global, Random, Window
from transformer.attention.scores import Additive
from transformer.layers.numerics import Numerics

RNG = np.random.default_rng(0)
B, T, N, K, H = 2, 11, 4, 2, 3
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=s).astype(np.float32) for s in (
    (B, T, N, H), (B, T, K, H), (B, T, K, H + 1), (B, T, N, H + 1)))
NUMBERS = jnp.array([[1] * 5 + [2] * 4 + [0] * 2, [1] * 11])
DATA = {'segments': Segments(NUMBERS, NUMBERS), 'padding': Padding(jnp.array([5, 0])),
        'lengths_of_queries': Padding(jnp.asarray(RNG.integers(0, T + 1, (B, T)))),
        'pairs': Explicit(RNG.random((B, T, T)) < 0.3)}
MASKS = {
    'full': Full(), 'causal': Causal(), 'window': Window(3), 'longformer': Causal() & (Window(2) | Global(1)),
    'bigbird': Window(2, block=2) | Global(2) | Random(1, 2, T), 'nothing': ~Full(), 'future': ~Causal(),
    **DATA, **{f'causal_{name}': Causal() & mask for name, mask in DATA.items()}, 'prefix': Causal() | DATA['padding'],
    'prefixes': (Causal() | Marked(jnp.asarray(RNG.integers(0, 2, (B, T))))) & DATA['segments']}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weighted(Term):
    """Scores times a slope by head, plus a product of query and a vector, minus the distance; and something for the output."""
    slopes: Any  # [N]
    vector: Any  # [H]

    def __call__(self, scores, query, key, t, s):
        scores = scores * self.slopes[:, None, None] - 0.1 * jnp.abs(t[:, None] - s)
        return scores + jnp.einsum('BTNH,H->BNT', query, self.vector)[..., None] * jnp.sin(s) + key[:, :, 0, 0][:, None, None]

    def values(self, weights, t, s):
        return jnp.einsum('BNTS,TS->BNT', weights, jnp.cos(t[:, None] - s))[..., None] * self.slopes[:, None, None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unvalued(Weighted):
    """The same, which adds nothing to the output."""
    values = None


TERM = Weighted(jnp.asarray(RNG.normal(size=N), jnp.float32), jnp.asarray(RNG.normal(size=H), jnp.float32))
BIASES = {
    'none': (), 'dense': (RNG.normal(size=(B, N, T, T)),), 'by_head': (RNG.normal(size=(N, T, T)),),
    'of_keys': (RNG.normal(size=(B, N, 1, T)),), 'of_queries': (RNG.normal(size=(T, 1)),), 'one': (RNG.normal(size=(1, 1)),),
    'term': (TERM,), 'several': (RNG.normal(size=(N, T, T)), TERM, RNG.normal(size=(1, T)))}
BIASES = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), BIASES)


def outcome(kernel, arrays, bias, **more):
    """(output, gradients of query, key, value and bias)."""
    @jax.jit
    def both(arrays, bias):
        out, pull = jax.vjp(lambda a, b: kernel(*a, bias=b, **more), arrays, bias)
        return out, pull(jnp.resize(COTANGENT, out.shape).astype(out.dtype) if out.size else out)
    return both(arrays, bias)


def assert_same(test, got, wanted, tolerance=2e-5):
    test.assertEqual(jax.tree.map(jnp.shape, got), jax.tree.map(jnp.shape, wanted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, wanted)


def rounded(*arrays):
    return tuple(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32) for x in arrays)


def assert_near(got, wanted, least=(0.0, 0.0)):
    """In bfloat16: to one or two units in the last place of the largest number, gradients to a few.

    Args:
      least: what counts as the largest number of the output and of gradients, where these are small because others cancel.
    """
    def assert_one(x, y, units, least):
        np.testing.assert_allclose(jnp.float32(x), y, rtol=0, atol=units * 2 ** -8 * max(np.abs(y).max(initial=0.0), least))
    assert_one(got[0], wanted[0], 1.5, least[0])
    jax.tree.map(lambda x, y: assert_one(x, y, 4, least[1]), got[1], wanted[1])


class BlockwiseTest(parameterized.TestCase):
    def test_every_mask_gives_what_the_plain_kernel_gives(self):
        for name, mask in MASKS.items():
            with self.subTest(name):
                got = jax.jit(lambda *a: blockwise(*a, mask=mask, size=4))(QUERY, KEY, VALUE)  # noqa: B023
                assert_same(self, got, plain(QUERY, KEY, VALUE, mask=mask))

    @parameterized.parameters(('full', 16), ('causal_segments', 4), ('bigbird', 4), ('nothing', 4), ('prefix', 4))
    def test_and_its_gradients(self, mask, size):
        arrays, more = (QUERY, KEY, VALUE), dict(mask=MASKS[mask])
        assert_same(self, outcome(blockwise, arrays, (), size=size, **more), outcome(plain, arrays, (), **more))

    @parameterized.parameters(*BIASES)
    def test_every_bias_gives_what_the_plain_kernel_gives(self, name):
        arrays, more = (QUERY, KEY, VALUE), dict(mask=MASKS['causal_segments'])
        wanted = outcome(plain, arrays, BIASES[name], **more)
        assert_same(self, outcome(blockwise, arrays, BIASES[name], size=4, **more), wanted)

    @parameterized.parameters(
        (0, 5, 5, 2, 2, 3, 'causal'), (2, 1, 1, 2, 1, 3, 'full'), (1, 1, 9, 1, 1, 1, 'window'), (1, 9, 1, 4, 2, 2, 'window'),
        (1, 8, 3, 3, 3, 4, 'causal'), (1, 4, 4, 6, 2, 1, 'window'))
    def test_shapes(self, batch, queries, keys, heads, key_heads, width, mask):
        draw = lambda *shape: np.random.default_rng(1).normal(size=shape).astype(np.float32)
        arrays = draw(batch, queries, heads, width), draw(batch, keys, key_heads, width), draw(batch, keys, key_heads, 2)
        wanted = outcome(plain, arrays, (), mask=MASKS[mask])
        assert_same(self, outcome(blockwise, arrays, (), mask=MASKS[mask], size=4), wanted)

    def test_bfloat16_is_near(self):
        got = outcome(blockwise, (QUERY, KEY, VALUE), (TERM,), mask=Causal(), numerics=Numerics('bfloat16'), size=4)
        wanted = outcome(plain, rounded(QUERY, KEY, VALUE), (TERM,), mask=Causal())
        self.assertEqual(got[0].dtype, jnp.bfloat16)
        assert_near(got, wanted)

    @hypothesis.settings(max_examples=10, deadline=None)
    @hypothesis.given(PATTERNS, *[strategies.integers(1, 20)] * 2, strategies.integers(1, 9),
                      strategies.sampled_from(['float32', 'bfloat16']))
    @pytest.mark.slow
    def test_any_pattern_length_and_size_of_blocks(self, mask, queries, keys, size, dtype):
        draw = lambda *shape: np.random.default_rng(queries).normal(size=shape).astype(np.float32)
        arrays = draw(1, queries, 2, 3), draw(1, keys, 1, 3), draw(1, keys, 1, 2)
        got = outcome(blockwise, arrays, (), mask=mask, size=size, numerics=Numerics(dtype))
        if dtype == 'float32':
            assert_same(self, got, outcome(plain, arrays, (), mask=mask))
        else:
            assert_near(got, outcome(plain, rounded(*arrays), (), mask=mask), least=(1.0, 4.0))

    def test_large_scores(self):
        arrays = 300 * QUERY, 300 * KEY, VALUE
        wanted = outcome(plain, arrays, (), mask=Causal())
        assert_same(self, outcome(blockwise, arrays, (), mask=Causal(), size=4), wanted, 2e-3)

    def test_dropout_keeps_the_mean_and_its_gradient_is_that_of_the_same_draw(self):
        ones = jnp.ones((1, 256, 1, 1))
        drop = lambda value, key: blockwise(ones, ones, value, mask=Full(), rate=0.25, dropout_key=key, size=64)
        once = drop(ones, jax.random.key(0))
        self.assertAlmostEqual(float(once.mean()), 1.0, delta=0.01)
        self.assertGreater(float(once.std()), 0.01)
        np.testing.assert_array_equal(once, drop(ones, jax.random.key(0)))
        self.assertTrue((once != drop(ones, jax.random.key(1))).any())
        np.testing.assert_array_equal(blockwise(ones, ones, ones, mask=Full(), rate=0.25, size=64), jnp.ones_like(ones))
        # Linear in the values, so the gradient gives back the output: sum over s of value_s · d out / d value_s.
        value = jax.random.normal(jax.random.key(2), ones.shape)
        out, pull = jax.vjp(lambda v: drop(v, jax.random.key(0)), value)
        np.testing.assert_allclose((pull(jnp.ones_like(out))[0] * value).sum(), out.sum(), rtol=1e-5)

    def test_dropout_draws_for_each_pair_of_blocks(self):
        ones, one_hot = jnp.ones((1, 8, 1, 1)), jnp.eye(8)[None, :, None]
        weights = blockwise(ones, ones, one_hot, mask=Full(), rate=0.5, dropout_key=jax.random.key(0), size=4)[0, :, 0]
        self.assertEqual(set(np.unique(weights)), {0.0, 2 / 8})
        self.assertLen({weights[i:i + 4, j:j + 4].tobytes() for i in (0, 4) for j in (0, 4)}, 4)

    def test_gradients_of_query_and_key_under_dropout(self):
        def loss(query, key):
            out = blockwise(query, key, VALUE, mask=Causal(), rate=0.5, dropout_key=jax.random.key(0), size=4)
            return (out * COTANGENT).sum()

        direction = [RNG.normal(size=x.shape).astype(np.float32) for x in (QUERY, KEY)]
        gradients = jax.jit(jax.grad(loss, (0, 1)))(QUERY, KEY)
        moved = jax.jit(lambda step: loss(QUERY + step * direction[0], KEY + step * direction[1]))
        slope = (moved(1e-2) - moved(-1e-2)) / 2e-2
        np.testing.assert_allclose(sum((g * d).sum() for g, d in zip(gradients, direction)), slope, rtol=2e-3)

    @parameterized.parameters('term', 'several')
    def test_dropout_is_of_the_weights_that_terms_give_values_to(self, name):
        """As with all scores at once, of which the same are dropped; values of one for each key tell which these are."""
        more = dict(mask=MASKS['causal_segments'], rate=0.5, dropout_key=jax.random.key(0), size=4)
        without_values = tuple(Unvalued(e.slopes, e.vector) if isinstance(e, Weighted) else e for e in BIASES[name])
        one_for_each_key = jnp.broadcast_to(jnp.eye(T)[:, None], (B, T, K, T))
        kept = blockwise(QUERY, KEY, one_for_each_key, bias=without_values, **more).swapaxes(1, 2) > 0  # [B, N, T, S]

        def dense(query, key, value, *, bias):
            weights = weights_of(query, key, mask=MASKS['causal_segments'], bias=bias)
            return mixed(jnp.where(kept, weights / 0.5, 0.0), value, bias=bias)

        self.assertBetween(float(kept[:, :, NUMBERS[0] > 0].mean()), 0.05, 0.3)
        arrays = QUERY, KEY, VALUE
        assert_same(self, outcome(blockwise, arrays, BIASES[name], **more), outcome(dense, arrays, BIASES[name]))

    def test_memory_grows_with_the_length_not_its_square(self):
        def megabytes(length):
            x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
            both = jax.grad(lambda *a: attend(*a, mask=Causal(), implementation='blockwise').sum(), (0, 1, 2))
            return jax.jit(both).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes / 1e6

        self.assertLess(megabytes(8192), 3 * megabytes(4096))
        self.assertLess(megabytes(8192), 0.2 * 4e-6 * 2 * 8192 ** 2)  # of one array of all scores

    def test_only_blocks_that_are_not_empty_are_computed(self):
        def operations(mask):
            compiled = jax.jit(lambda q, k, v: blockwise(q, k, v, mask=mask, size=64)).lower(
                *(jax.ShapeDtypeStruct((1, 512, 1, 8), jnp.float32),) * 3)
            return sum(int(n) for n in re.findall(r'dense<.*> : tensor<(\d+)x2xi32>', compiled.as_text()))

        self.assertEqual(operations(Full()), 64)
        self.assertEqual(operations(Causal()), 28 + 8)
        self.assertEqual(operations(Causal() & Window(64)), 15)

    def test_the_size_of_blocks_follows_the_mask(self):
        self.assertEqual(size_for(Causal(), 4096, 4096), 512)
        self.assertLess(size_for(Causal() & Window(64), 4096, 4096), 512)
        self.assertIn(size_for(Full(), 1, 1), SIZES)
        sparse, dense = milliseconds(Causal() & Window(64), 4096, 4096)
        self.assertLess(10 * sparse, dense)

    def test_a_bias_that_is_as_low_as_numbers_go_hides_nothing(self):
        lowest = jnp.full((1, 1, T, T), jnp.finfo(jnp.float32).min)
        wanted = attend(QUERY, KEY, VALUE, bias=lowest, implementation='plain')
        np.testing.assert_allclose(blockwise(QUERY, KEY, VALUE, mask=Full(), bias=(lowest,), size=4), wanted, atol=1e-6)

    def test_rows_and_heads_that_are_split_over_devices_stay_there(self):
        mesh = jax.make_mesh((2, 4), ('data', 'tensor'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data', None, 'tensor'))
        query, key = (jax.ShapeDtypeStruct((4, 16, heads, 4), jnp.float32, sharding=split) for heads in (8, 4))
        loss = lambda query, key, value: blockwise(query, key, value, mask=Causal(), size=8).sum()
        compiled = jax.jit(jax.grad(loss, (0, 1, 2)), out_shardings=split).lower(query, key, key).compile()
        self.assertNotIn('all-gather', compiled.as_text())

    def test_a_term_may_ask_for_smaller_blocks(self):
        row = jnp.zeros((1, 1024, 1, 4))
        _, _, bias = Additive(4).prepare({'query': jnp.ones((1, 4, 4)), 'key': jnp.ones((1, 4, 4)), 'output': jnp.ones((1, 4))},
                                         row, row)
        self.assertEqual([size_for(Full(), 1024, 1024, more) for more in ((TERM,), (TERM, *bias))], [512, 64])
        programs = [str(jax.make_jaxpr(lambda x: blockwise(x, x, x, mask=Full(), bias=more))(row)) for more in ((), bias)]  # noqa: B023
        self.assertEqual(['f32[1,1,64,64]' in program for program in programs], [False, True])


if __name__ == '__main__':
    absltest.main()
