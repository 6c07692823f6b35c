import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies

from tests import differences
from transformer.attention.kernels.attend import attend, masked_softmax
from transformer.attention.masks.data import Explicit
from transformer.attention.masks.patterns import Full
from transformer.layers.numerics import Numerics

B, T, S, N, H = 2, 3, 4, 2, 3
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, COTANGENT = (RNG.normal(size=s) for s in ((B, T, N, H), (B, S, N, H), (B, S, N, H), (B, T, N, H)))
SOME = RNG.random((B, T, S)) < 0.6
SOME[0, 1] = False  # a query that may attend to nothing
SOME[1, 0] = True
MASKS = {'everything': None, 'of_positions': SOME[1], 'per_row': SOME}


def naive(query, key, value, visible):
    """Attention in float64, one query of one head at a time."""
    out = np.zeros_like(query)
    visible = np.broadcast_to(True if visible is None else visible, (B, T, S))
    for b, t, n in np.ndindex(B, T, N):
        seen = np.flatnonzero(visible[b, t])
        if len(seen):
            weights = np.exp([query[b, t, n] @ key[b, s, n] / np.sqrt(H) for s in seen])
            out[b, t, n] = sum(w * value[b, s, n] for w, s in zip(weights / weights.sum(), seen))
    return out


class AttendTest(parameterized.TestCase):
    @parameterized.named_parameters(*MASKS.items())
    def test_values_and_gradients_equal_a_float64_loop(self, visible):
        arrays = [x.copy() for x in (QUERY, KEY, VALUE)]
        mask = Full() if visible is None else Explicit(visible)

        @jax.jit
        def outcome(*arrays):
            out, back = jax.vjp(lambda *a: attend(*a, mask=mask), *arrays)
            return out, back(jnp.float32(COTANGENT))

        got, gradients = outcome(*map(np.float32, arrays))
        np.testing.assert_allclose(got, naive(*arrays, visible), atol=1e-6)
        wanted = [differences.gradient(lambda: (naive(*arrays, visible) * COTANGENT).sum(), array) for array in arrays]
        for name, gradient, exact in zip('qkv', gradients, wanted):
            np.testing.assert_allclose(gradient, exact, atol=2e-6, err_msg=name)

    def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(self):
        def outcome(*arrays):
            out = attend(*arrays, mask=Explicit(SOME), implementation='plain')
            return jnp.square(out).sum(), out

        gradients, out = jax.jit(jax.grad(outcome, (0, 1, 2), has_aux=True))(*map(np.float32, (QUERY, KEY, VALUE)))
        np.testing.assert_array_equal(out[0, 1], np.zeros((N, H)))
        self.assertTrue(all(np.isfinite(g).all() for g in gradients))
        np.testing.assert_array_equal(gradients[0][0, 1], np.zeros((N, H)))

    def test_what_is_masked_moves_nothing(self):
        run = jax.jit(lambda *a: attend(*a, mask=Explicit(SOME)))
        before = np.asarray(run(*map(np.float32, (QUERY, KEY, VALUE))))
        for s in range(S):
            key, value = np.float32(KEY), np.float32(VALUE)
            key[:, s] += 9.0
            value[:, s] += 9.0
            moved = (np.asarray(run(np.float32(QUERY), key, value)) != before).any((-1, -2))
            np.testing.assert_array_equal(moved, SOME[..., s])

    def test_dropout_acts_on_the_weights(self):
        ones = jnp.ones((1, 400, 1, 1))
        dropped = attend(ones, ones, ones, rate=0.25, dropout_key=jax.random.key(0))
        self.assertAlmostEqual(float(dropped.mean()), 1.0, delta=0.01)  # 400 weights of 1/400, kept ones 4/3 times that
        self.assertGreater(float(dropped.std()), 0.01)
        np.testing.assert_allclose(attend(ones, ones, ones, rate=0.25), 1.0, rtol=1e-5)

    def test_what_no_kernel_can_mean_is_refused(self):
        ones = jnp.ones((1, 4, 2, 3))
        for implementation in 'plain', 'blockwise':
            with self.assertRaisesRegex(ValueError, r'dropout is 1.0; expected a rate in \[0, 1\)'):
                attend(ones, ones, ones, rate=1.0, dropout_key=jax.random.key(0), implementation=implementation)
            with self.assertRaisesRegex(ValueError, 'There are 2 heads of keys and 1 of values; give them as many of each'):
                attend(ones, ones, ones[:, :, :1], implementation=implementation)

    def test_bfloat16_is_near(self):
        got = attend(*map(jnp.float32, (QUERY, KEY, VALUE)), numerics=Numerics('bfloat16'))
        self.assertEqual(got.dtype, jnp.bfloat16)
        np.testing.assert_allclose(got.astype(jnp.float32), naive(QUERY, KEY, VALUE, None), atol=2e-2)


class ShapesTest(absltest.TestCase):
    @hypothesis.settings(max_examples=10, deadline=None)
    @hypothesis.given(
        strategies.integers(0, 2), strategies.integers(1, 6), strategies.integers(1, 6), strategies.sampled_from([1, 2, 3]),
        strategies.sampled_from([1, 2]), strategies.integers(1, 4), strategies.integers(1, 3), strategies.data(),
        strategies.sampled_from(['float32', 'bfloat16']))
    def test_every_shape_mask_and_type(self, batch, queries, keys, key_heads, shared, width, value_width, data, dtype):
        rng = np.random.default_rng(data.draw(strategies.integers(0, 99)))
        query, key, value = (rng.normal(size=(batch, *shape)) for shape in (
            (queries, key_heads * shared, width), (keys, key_heads, width), (keys, key_heads, value_width)))
        visible = rng.random((batch, queries, keys)) < data.draw(strategies.sampled_from([0.0, 0.5, 1.0]))
        run = jax.jit(lambda *a: attend(*a, mask=Explicit(visible), numerics=Numerics(dtype)))
        got = run(*map(np.float32, (query, key, value)))
        self.assertEqual((got.shape, got.dtype), ((batch, queries, key_heads * shared, value_width), dtype))
        for b, t, n in np.ndindex(batch, queries, key_heads * shared):
            seen, wanted = np.flatnonzero(visible[b, t]), 0.0
            if len(seen):
                weights = np.exp(key[b, seen, n // shared] @ query[b, t, n] / np.sqrt(width))
                wanted = weights / weights.sum() @ value[b, seen, n // shared]
            np.testing.assert_allclose(np.float64(got[b, t, n]), wanted, atol=2e-6 if dtype == 'float32' else 0.06)


class MaskedSoftmaxTest(parameterized.TestCase):
    @parameterized.parameters('float32', 'bfloat16')
    def test_rows_sum_to_one_over_the_visible(self, dtype):
        scores = jnp.asarray(RNG.normal(size=(B, T, S)) * 30, dtype)
        weights = masked_softmax(scores, jnp.asarray(SOME))
        self.assertEqual(weights.dtype, jnp.float32)
        np.testing.assert_allclose(weights.sum(-1), SOME.any(-1), atol=1e-6)
        np.testing.assert_array_equal(weights[~SOME], 0.0)

    def test_equals_the_formula_and_survives_large_scores(self):
        scores = RNG.normal(size=(5, 7))
        exact = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(masked_softmax(jnp.float32(scores)), exact, atol=1e-6)
        np.testing.assert_allclose(masked_softmax(jnp.float32(scores) + 1e4), exact, atol=2e-3)
        np.testing.assert_array_equal(masked_softmax(jnp.array([-1e30, 1e30])), [0.0, 1.0])


if __name__ == '__main__':
    absltest.main()
