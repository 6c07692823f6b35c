import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.models import build, changed
from training.config.resolve import subclasses
from training.report import flops
from transformer.attention.kernels.attend import attend, masked_softmax, mixed, plain, weights_of
from transformer.attention.kernels.blockwise import blockwise
from transformer.attention.masks.data import Marked, Padding, Segments
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.mechanism import Given, Softmax
from transformer.attention.pooling import Gaussian as GaussianKernel
from transformer.attention.pooling import pool
from transformer.attention.positions.relative import Alibi, Shaw
from transformer.attention.scores import Additive, Bilinear, Cosine, Dot, Gaussian, Location, ScaledDot, Score, products
from transformer.layers.numerics import Numerics
from transformer.models.gpt import Gpt

RNG = np.random.default_rng(0)
B, T, S, N, K, H = 2, 3, 5, 4, 2, 3
QUERY, KEY = RNG.normal(size=(B, T, N, H)), RNG.normal(size=(B, S, K, H))
# The score of one query of head n with key number s of the head k that it uses, in float64.
LOOPS = {
    ScaledDot(): lambda p, q, k, n, h, s: q @ k / np.sqrt(H),
    Dot(): lambda p, q, k, n, h, s: q @ k,
    Bilinear(): lambda p, q, k, n, h, s: q @ p['kernel'][n] @ k,
    Additive(4): lambda p, q, k, n, h, s: p['output'][n] @ np.tanh(q @ p['query'][n] + k @ p['key'][h]),
    Cosine(): lambda p, q, k, n, h, s: np.exp(p['log_sharpness'][n]) * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k),
    Cosine(2.5, learnt=False): lambda p, q, k, n, h, s: 2.5 * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k),
    Location(7): lambda p, q, k, n, h, s: q @ p['table'][s, h],
    Gaussian(): lambda p, q, k, n, h, s: -0.5 * ((q - k) ** 2).sum(),
}


def drawn(score, query=QUERY, key=KEY):
    wanted = score.parameters(query.shape[2], key.shape[2], query.shape[3], key.shape[3])
    return {name: 0.7 * np.random.default_rng(1).normal(size=one.shape) for name, one in wanted.items()}


def loop(score, parameters, query=QUERY, key=KEY):
    scores = np.zeros((B, N, T, S))
    for b, n, t, s in np.ndindex(scores.shape):
        h = n // (N // K)
        scores[b, n, t, s] = LOOPS[score](parameters, query[b, t, n], key[b, s, h], n, h, s)
    return scores


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def float32(tree):
    return jax.tree.map(jnp.float32, tree)


class ScoresTest(parameterized.TestCase):
    def test_every_score_is_here(self):
        self.assertEqual({type(score) for score in LOOPS}, set(subclasses(Score).values()))

    @parameterized.parameters(*LOOPS)
    def test_the_weights_are_the_softmax_of_a_loop_in_float64(self, score):
        parameters = drawn(score)
        query, key, bias = score.prepare(float32(parameters), *float32((QUERY, KEY)))
        got = weights_of(query, key, bias=bias)
        np.testing.assert_allclose(got, softmax(loop(score, parameters)), atol=2e-6)

    @parameterized.parameters(*LOOPS)
    def test_gradients_by_blocks_equal_plain_ones_and_finite_differences(self, score):
        parameters, value = float32(drawn(score)), jnp.float32(RNG.normal(size=(B, S, K, H)))
        cotangent = RNG.normal(size=(B, T, N, H))

        def loss(parameters, query, key, kernel, **more):
            query, key, bias = score.prepare(parameters, query, key)
            return (kernel(query, key, value, mask=Causal(), bias=bias, **more) * cotangent).sum()

        given = (parameters, *float32((QUERY, KEY)))
        whole = jax.jit(jax.grad(lambda *a: loss(*a, plain), (0, 1, 2)))(*given)
        blocks = jax.jit(jax.grad(lambda *a: loss(*a, blockwise, size=2), (0, 1, 2)))(*given)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), blocks, whole)
        direction = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), given)
        moved = jax.jit(lambda step: loss(*jax.tree.map(lambda x, d: x + step * d, given, direction), plain))
        slope = (moved(3e-3) - moved(-3e-3)) / 6e-3
        along = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), whole, direction)))
        np.testing.assert_allclose(along, slope, rtol=1e-2, atol=5e-3)

    @parameterized.parameters(Bilinear(), Additive(4))
    def test_queries_and_keys_of_different_widths(self, score):
        key = RNG.normal(size=(B, S, K, H + 2))
        parameters = drawn(score, QUERY, key)
        prepared = score.prepare(float32(parameters), *float32((QUERY, key)))
        weights = weights_of(*prepared[:2], bias=prepared[2])
        np.testing.assert_allclose(weights, softmax(loop(score, parameters, QUERY, key)), atol=2e-6)

    def test_cosine_looks_at_directions_alone(self):
        weights = lambda query, key: weights_of(*(prepared := Cosine().prepare({'log_sharpness': jnp.ones(N)}, query, key))[:2],
                                                bias=prepared[2])
        np.testing.assert_allclose(weights(*float32((QUERY, KEY))), weights(*float32((100 * QUERY, 0.01 * KEY))), atol=1e-5)
        self.assertTrue(np.isfinite(weights(jnp.zeros(QUERY.shape), jnp.zeros(KEY.shape))).all())

    def test_location_does_not_look_at_keys_and_has_a_longest_source(self):
        parameters = float32(drawn(Location(7)))
        first, second = (Location(7).prepare(parameters, jnp.float32(QUERY), key)[1] for key in (KEY, 2 * KEY))
        np.testing.assert_array_equal(first, second)
        with self.assertRaisesRegex(ValueError, r'Location\(length=4\) is asked for 5 positions, more .* length=5'):
            Location(4).prepare({'table': jnp.zeros((4, K, H))}, QUERY, KEY)

    def test_gaussian_weights_are_those_of_nadaraya_and_watson(self):
        query, key = float32((QUERY[0, :, 0], KEY[0, :, 0]))
        weights = pool(query, key, key, GaussianKernel(1.0))[1]
        prepared = Gaussian().prepare({}, query[None, :, None], key[None, :, None])
        np.testing.assert_allclose(weights_of(*prepared[:2], bias=prepared[2])[0, 0], weights, atol=1e-6)

    def test_bad_fields(self):
        with self.assertRaisesRegex(ValueError, 'width of 1 or more'):
            Additive(0)

    @parameterized.parameters(*(score for score in LOOPS if score != ScaledDot()))
    def test_one_field_of_a_model_switches_it_on(self, score):
        model = build(Gpt, vocab=5, length=7, layers=1, heads=2, key_heads=1, width=8, attention=Softmax(score=score))
        tokens = np.arange(6)[None] % 5
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens))
        variables = jax.tree.map(lambda s: (0.5 * RNG.normal(size=s.shape)).astype(np.float32), shapes)
        own = variables['params']['block_0']['attention'].get('mechanism', {})
        self.assertEqual(set(own), set(score.parameters(2, 1, 4, 4)))

        @jax.jit
        def outputs(variables):
            cached = model.apply(variables, tokens, positions=jnp.arange(6)[None], cache=model.init_cache(1))
            usual = changed(model, attention=Softmax()).apply(variables, tokens)
            return [out['logits'] for out in (model.apply(variables, tokens), cached, usual)]

        logits, cached, usual = outputs(variables)
        np.testing.assert_allclose(cached, logits, atol=1e-5)
        self.assertGreater(float(jnp.abs(logits - usual).max()), 1e-4)

    def test_a_width_that_does_not_go_with_a_position_encoding_is_refused(self):
        model = build(Gpt, vocab=5, length=7, layers=1, heads=2, width=8, positions=Shaw(2),
                      attention=Softmax(score=Additive(5)))
        init = lambda model: jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 6), int)))
        with self.assertRaisesRegex(ValueError, r'Additive\(width=5\) makes queries 5 wide, but positions=Shaw.* heads of 4'):
            init(model)
        for other in (dict(positions=Alibi()), dict(attention=Softmax(score=Additive(4)))):
            init(changed(model, **other))

    def test_every_field_has_an_effect(self):
        def weights(score, source=KEY):
            query, key, bias = score.prepare(float32(drawn(score)), *float32((QUERY, source)))
            return np.asarray(weights_of(query, key, bias=bias))
        self.assertGreater(np.abs(weights(Additive(4)) - weights(Additive(5))).max(), 1e-2)
        longer = np.concatenate([KEY, KEY], 1)[:, :8]
        np.testing.assert_array_equal(weights(Location(7)), weights(Location(8)))
        self.assertGreater(weights(Location(8), longer).min(), 0.0)
        with self.assertRaisesRegex(ValueError, 'asked for 8 positions'):
            weights(Location(7), longer)


class ChaptersTest(absltest.TestCase):
    """Numbers that the chapters give."""

    def test_scores_of_112_and_96_give_weights_of_88_and_12_percent(self):
        query = jnp.zeros((1, 1, 1, 64)).at[..., 0].set(16.0)
        key = jnp.zeros((1, 2, 1, 64)).at[0, :, 0, 0].set(jnp.array([7.0, 6.0]))
        np.testing.assert_allclose(jnp.einsum('BTNH,BSNH->BS', query, key)[0], [112, 96])
        np.testing.assert_allclose(weights_of(query, key)[0, 0, 0], [0.88, 0.12], atol=0.005)

    def test_the_gradient_by_the_query_is_the_covariance_of_the_keys(self):
        query, key = jnp.float32(RNG.normal(size=(1, 1, 1, H))), jnp.float32(RNG.normal(size=(1, S, 1, H)))
        jacobian = jax.jacobian(lambda q: attend(q, key, key)[0, 0, 0])(query)[:, 0, 0, 0]
        weights, keys = np.float64(weights_of(query, key)[0, 0, 0]), np.float64(key[0, :, 0])
        mean = weights @ keys
        covariance = np.einsum('s,si,sj->ij', weights, keys - mean, keys - mean)
        np.testing.assert_allclose(jacobian, covariance / np.sqrt(H), atol=1e-6)

    def test_a_saturated_softmax_has_no_derivative(self):
        jacobian = jax.jacobian(masked_softmax)(jnp.array([-3.0, 1.0, 1000.0, 5.0, -1.0]))
        np.testing.assert_array_equal(jacobian, np.zeros((5, 5)))

    def test_valid_lengths_of_each_example_and_of_each_query(self):
        scores = jnp.float32(RNG.random((2, 2, 4)))
        row = jnp.arange(4)
        each = masked_softmax(scores, Padding(jnp.array([2, 3]))(row[:2], row))
        np.testing.assert_array_equal(each > 0, [[[1, 1, 0, 0]] * 2, [[1, 1, 1, 0]] * 2])
        by_query = masked_softmax(scores, Padding(jnp.array([[1, 3], [2, 4]]))(row[:2], row))
        np.testing.assert_array_equal(by_query > 0, [[[1, 0, 0, 0], [1, 1, 1, 0]], [[1, 1, 0, 0], [1, 1, 1, 1]]])
        np.testing.assert_allclose(by_query.sum(-1), 1.0, rtol=1e-6)

    def test_equal_keys_weigh_the_same(self):
        value = jnp.float32(RNG.normal(size=(1, 10, 1, 4)))
        out = attend(jnp.ones((1, 1, 1, 2)), jnp.ones((1, 10, 1, 2)), value, mask=Full() & Padding(jnp.array([6])))
        np.testing.assert_allclose(out[0, 0, 0], value[0, :6, 0].mean(0), rtol=1e-5)

    def test_products_over_patches_and_over_channels(self):
        def multiplications(queries, width):
            x = jnp.zeros((1, queries, 1, width))
            weights = jnp.zeros((1, 1, queries, queries))
            return sum(flops.count(function, x) for function in (lambda x: products(x, x), lambda x: mixed(weights, x))) / 2

        self.assertEqual(multiplications(16 * 16, 512), 67_108_864)  # each patch looks at all patches
        self.assertEqual(multiplications(512, 16 * 16), 134_217_728)  # each channel at all channels

    def test_bfloat16_scores_stay_wide(self):
        query, key, _ = ScaledDot().prepare({}, *float32((QUERY, KEY)), Numerics('bfloat16'))
        self.assertEqual(weights_of(query, key, numerics=Numerics('bfloat16')).dtype, jnp.float32)

    def test_places_are_those_in_the_document(self):
        numbers, location = jnp.array([[1] * 4 + [2] * 3]), Softmax(score=Location(7))
        parameters = float32(drawn(Location(7)))
        arrays = float32(tuple(RNG.normal(size=(1, 7, heads, H)) for heads in (N, K, K)))
        prefix = lambda part: Causal() | Marked(jnp.array([[1, 1, 0, 0, 1, 0, 0]])[:, part])
        for pattern in (lambda part: Full(), prefix):
            whole = location(parameters, *arrays, Given(pattern(slice(None)) & Segments(numbers, numbers)))
            for part in (slice(0, 4), slice(4, 7)):
                alone = location(parameters, *(x[:, part] for x in arrays), Given(pattern(part)))
                np.testing.assert_allclose(whole[:, part], alone, atol=1e-5)

    def test_location_without_a_length(self):
        with self.assertRaisesRegex(ValueError, 'length is 0; expected at least 1'):
            Location(length=0)


if __name__ == '__main__':
    absltest.main()
