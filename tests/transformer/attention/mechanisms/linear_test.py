import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import attention, drawn, output, visible, weights
from tests.models import build
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.mechanism import Given
from transformer.attention.mechanisms.linear import Linear, Performer, _directions
from transformer.layers.numerics import Numerics
from transformer.models.encoder_decoder import EncoderDecoder

SEGMENTS = np.array([[1] * 4 + [2] * 3 + [0] * 2, [3] + [1] * 8])
DOCUMENTS, LENGTHS = Segments(SEGMENTS, SEGMENTS), Padding(np.array([6, 9]))
MASKS = {'full': Full(), 'causal': Causal(), 'documents': DOCUMENTS, 'causal_documents': Causal() & DOCUMENTS,
         'padding': LENGTHS, 'causal_padding': Causal() & LENGTHS, 'both': DOCUMENTS & LENGTHS}
BOTH = {'linear': Linear(chunk=4), 'performer': Performer(features=8, chunk=4)}


def kernel(mechanism, q, k):
    """φ(q)·φ(k) in float64."""
    if isinstance(mechanism, Linear):
        phi = lambda x: np.where(x > 0, x + 1, np.exp(x))
    else:
        w = np.float64(_directions(mechanism, len(q), np.float32))
        phi = lambda x: np.exp(w @ (x / len(x) ** 0.25) - (x @ x) / len(x) ** 0.5 / 2) / np.sqrt(len(w))
    return phi(q) @ phi(k)


def naive(mechanism, query, key, value, seen):
    query, key, value = map(np.float64, (query, key, value))
    share, out = query.shape[2] // key.shape[2], np.zeros(query.shape)
    for b, t, n in np.ndindex(query.shape[:3]):
        total = 0.0
        for s in np.flatnonzero(seen[b, t]):
            weight = kernel(mechanism, query[b, t, n], key[b, s, n // share])
            out[b, t, n] += weight * value[b, s, n // share]
            total += weight
        out[b, t, n] /= total or 1.0
    return out


@functools.partial(jax.jit, static_argnums=0)
def step(mechanism, cache, at, *new):
    return mechanism.step({}, *new, cache, at, Given(Causal()))


class LinearTest(parameterized.TestCase):
    @parameterized.parameters(*BOTH.values())
    def test_equals_a_float64_loop(self, mechanism):
        arrays = drawn()
        found = jax.jit(lambda: {name: mechanism({}, *arrays, Given(mask)) for name, mask in MASKS.items()})()
        for name, mask in MASKS.items():
            wanted = naive(mechanism, *arrays, visible(mask, 9, 9, 2))
            np.testing.assert_allclose(found[name], wanted, atol=2e-6, err_msg=name)

    @parameterized.parameters(*BOTH.values())
    def test_two_sources_with_documents(self, mechanism):
        query, key, value = drawn(queries=5)
        mask = Segments(np.array([[1, 1, 2, 2, 0], [1, 1, 3, 3, 3]]), SEGMENTS)
        wanted = naive(mechanism, query, key, value, visible(mask, 5, 9, 2))
        np.testing.assert_allclose(output(mechanism, {}, query, key, value, mask), wanted, atol=2e-6)

    @parameterized.parameters(*BOTH.values())
    def test_two_sources_of_one_length_whose_documents_end_at_different_places(self, mechanism):
        query, key, value = drawn()
        mask = Segments(np.array([[1] * 2 + [2] * 7, [3] * 5 + [1] * 4]), SEGMENTS)
        wanted = naive(mechanism, query, key, value, visible(mask, 9, 9, 2))
        for chunk in (4, 64):
            one = dataclasses.replace(mechanism, chunk=chunk)
            np.testing.assert_allclose(output(one, {}, query, key, value, mask), wanted, atol=2e-6)

    def test_packed_rows_of_a_model_have_the_recurrent_form(self):
        linear = {'encoder.attention': Linear(), 'decoder.attention': Linear(), 'encoder.remat': 'full', 'decoder.scan': True}
        model = build(EncoderDecoder, vocab=5, source_vocab=0, layers=2, heads=2, width=8, **linear)
        tokens, key = np.ones((2, 9), int), jax.random.key(0)
        rows = dict(inputs=tokens, decoder_inputs=tokens, segments=SEGMENTS, decoder_segments=SEGMENTS)
        params = jax.eval_shape(lambda rows: model.init(key, **rows)['params'], rows)
        with (mock.patch.object(Linear, 'weights') as dense,
              mock.patch.object(Linear, '_running', autospec=True, side_effect=Linear._running) as running):
            jax.eval_shape(lambda params, rows: model.apply({'params': params}, **rows), params, rows)
        dense.assert_not_called()
        self.assertGreaterEqual(running.call_count, 2)  # of the encoder and of the decoder

    @parameterized.parameters(*BOTH)
    def test_any_chunk_gives_the_same_values_and_gradients(self, name):
        arrays, mask = drawn(), Causal() & DOCUMENTS

        def by_weights(*arrays):
            matrix = BOTH[name].weights({}, *arrays[:2], None, Given(mask))
            return jnp.square(jnp.einsum('bnts,bsnh->btnh', matrix, jnp.repeat(arrays[2], 2, 2))).sum()

        def in_chunks(chunk):
            mechanism = dataclasses.replace(BOTH[name], chunk=chunk)
            return lambda *arrays: jnp.square(mechanism({}, *arrays, Given(mask))).sum()

        losses = [by_weights, *map(in_chunks, (1, 5, 64))]
        wanted, *found = jax.jit(lambda: [jax.value_and_grad(loss, (0, 1, 2))(*arrays) for loss in losses])()
        for got in found:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), got, wanted)

    @parameterized.product(mechanism=[*BOTH], prompt=(1, 4, 7))
    def test_the_recurrent_form_equals_the_parallel_one(self, mechanism, prompt):
        mechanism, arrays = BOTH[mechanism], drawn()
        whole = output(mechanism, {}, *arrays, Causal())
        cache = mechanism.empty_cache(2, 9, 4, 2, 3, 'float32')
        sizes = {name: x.shape for name, x in cache.items()}
        for begin, end in [(0, prompt)] + [(t, t + 1) for t in range(prompt, 9)]:
            at = np.broadcast_to(np.arange(begin, end), (2, end - begin))
            out, cache = step(mechanism, cache, at, *(x[:, begin:end] for x in arrays))
            np.testing.assert_allclose(out, whole[:, begin:end], atol=2e-6)
        self.assertEqual({name: x.shape for name, x in cache.items()}, sizes)  # a state that does not grow

    @parameterized.parameters(*BOTH.values())
    def test_a_state_that_took_up_padding_or_skips_a_position_gives_nan(self, mechanism):
        arrays = [x[:, :2] for x in drawn()]
        cache = mechanism.empty_cache(2, 9, 4, 2, 3, 'float32')
        at = np.array([[0, 1], [1, 2]])
        out, _ = step(mechanism, cache, at, *arrays)
        self.assertTrue(np.isfinite(out[0]).all())
        self.assertTrue(np.isnan(out[1]).all())

    def test_lengths_that_differ_between_queries_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'differ between the queries of a row need an attention with scores'):
            output(Linear(), {}, *drawn(), Padding(np.full((2, 9), 4)))

    def test_a_causal_mask_over_two_sources_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'runs along one sequence under a causal mask, but got 5 queries and 9 keys'):
            output(Linear(), {}, *drawn(queries=5), Causal())

    def test_memory_for_the_gradient_grows_with_the_length_alone(self):
        def largest(length):
            arrays = drawn(queries=length, keys=length, batch=1, heads=1, key_heads=1)
            loss = lambda *arrays: Linear(chunk=8)({}, *arrays, Given(Causal())).sum()
            compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arrays).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        self.assertLess(largest(2048) / largest(1024), 2.1)

    @parameterized.parameters(0, -1)
    def test_a_chunk_of_nothing_is_refused(self, chunk):
        with self.assertRaisesRegex(ValueError, f'chunk is {chunk}; expected at least 1'):
            Linear(chunk=chunk)


class PerformerTest(parameterized.TestCase):
    def errors(self, features, orthogonal, seeds, mask=Full()):
        query, key, value = drawn(batch=1, queries=32, keys=32, heads=1, key_heads=1, width=16)
        query, key = 0.4 * query, 0.4 * key
        exact = attention(query, key, value, visible(mask, 32, 32, 1))
        return np.mean([np.square(Performer(features, orthogonal, seed)({}, query, key, value, Given(mask)) - exact).mean()
                        for seed in range(seeds)])

    def test_the_squared_error_falls_as_one_over_the_features(self):
        counts = np.array([32, 128, 512, 2048])
        errors = [self.errors(count, True, 12) for count in counts]
        slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
        self.assertBetween(slope, -1.15, -0.85)
        self.assertLess(errors[-1], 1e-3)

    def test_the_kernel_is_unbiased_with_the_error_of_the_paper(self):
        # Lemma 2, independent features: MSE = k² (exp(|x + y|²) - 1) / features, with x, y = q, k over H^(1/4)
        query, key, _ = drawn(batch=1, queries=8, keys=8, heads=1, key_heads=1, width=16)
        x, y = (0.3 * a[0, :, 0] / 2 for a in (query, key))
        exact, spread = np.exp(x @ y.T), np.square(x[:, None] + y).sum(-1)
        for features in (64, 256, 1024):
            def one(seed, features=features):
                performer = Performer(features, orthogonal=False, seed=seed)
                (q, a), (k, b) = (performer.feature_map(0.3 * x, Numerics()) for x in (query, key))
                return np.einsum('tf,sf->ts', q[0, :, 0] * np.exp(a[0]), k[0, :, 0] * np.exp(b[0]))
            estimates = np.array([one(seed) for seed in range(80)])
            np.testing.assert_allclose(estimates.mean(0) / exact, 1.0, atol=0.1)
            error = np.square(estimates - exact).mean(0) / np.square(exact) * features / (np.exp(spread) - 1)
            self.assertAlmostEqual(error.mean(), 1.0, delta=0.15)

    def test_orthogonal_features_have_less_error_than_independent_ones(self):
        self.assertLess(self.errors(16, True, 60), 0.9 * self.errors(16, False, 60))

    def test_directions_are_orthogonal_in_groups_with_lengths_of_normal_draws(self):
        drawn = np.float64(_directions(Performer(features=1000), 8, np.float32))
        lengths = np.linalg.norm(drawn, axis=1)
        products = np.einsum('gih,gjh->gij', *2 * (drawn.reshape(-1, 8, 8) / lengths.reshape(-1, 8, 1),))
        np.testing.assert_allclose(products, np.broadcast_to(np.eye(8), products.shape), atol=1e-6)
        self.assertAlmostEqual(np.square(lengths).mean(), 8.0, delta=0.5)  # chi-squared with 8 degrees: mean 8, variance 16
        self.assertAlmostEqual(np.square(lengths).var(), 16.0, delta=3.0)
        np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.15)

    def test_huge_keys_neither_overflow_nor_reach_what_is_before_them(self):
        query, key, value = drawn()
        big = key.copy()
        big[:, 6:] *= 300.0
        performer = Performer(features=8, chunk=4)
        before, after = (output(performer, {}, query, x, value, Causal()) for x in (key, big))
        np.testing.assert_array_equal(before[:, :6], after[:, :6])
        self.assertTrue(np.isfinite(after).all())
        documents = Causal() & Segments(*2 * (np.array([[1] * 6 + [2] * 3] * 2),))
        flipped = jax.jit(lambda key: performer({}, query, np.flip(key, 1), value, Given(documents)))
        before, after = map(flipped, (key, big))
        np.testing.assert_array_equal(before[:, 6:], after[:, 6:])  # nor the document behind theirs
        for mask in (Full(), Causal() & DOCUMENTS):
            loss = lambda *a, mask=mask: jnp.square(performer({}, *a, Given(mask))).sum()
            gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(query, big, value)
            self.assertTrue(all(np.isfinite(g).all() for g in gradients))

    def test_weights_approach_those_of_softmax(self):
        query, key, value = drawn(width=8)
        query, key = 0.4 * query, 0.4 * key
        got = weights(Performer(features=4096), {}, query, key, value, Causal())
        seen = visible(Causal(), 9, 9, 2)
        one_hot = np.broadcast_to(np.eye(9)[:, None], (2, 9, 2, 9))
        np.testing.assert_allclose(got, attention(query, key, one_hot, seen).swapaxes(1, 2), atol=0.05)

    @parameterized.parameters(Causal(), Full(), Padding(np.array([9, 5])))
    def test_gradients_stay_finite_where_features_of_queries_and_keys_are_far_apart(self, mask):
        query, key, value = (6.0 * x for x in drawn(width=16))
        performer = Performer(features=64)
        loss = lambda *arrays: jnp.square(performer({}, *arrays, Given(mask))).sum()
        for gradient in jax.jit(jax.grad(loss, (0, 1, 2)))(query, key, value):
            self.assertTrue(np.isfinite(gradient).all())

    def test_no_features_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'features=0.*expected at least 1 feature'):
            Performer(features=0)


if __name__ == '__main__':
    absltest.main()
