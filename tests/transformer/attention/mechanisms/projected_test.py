import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import attention, drawn, output, parameters_of, times, visible, weights
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanisms.projected import Linformer, MemoryCompressed

LENGTHS = np.array([5, 9])
SEGMENTS = np.array([[1] * 4 + [2] * 3 + [0] * 2, [3] + [1] * 8])
DOCUMENTS = Segments(SEGMENTS, SEGMENTS)


class LinformerTest(parameterized.TestCase):
    @parameterized.product(shared=(False, True), mask=(Full(), Padding(LENGTHS)))
    def test_equals_a_float64_loop(self, shared, mask):
        query, key, value = drawn()
        linformer = Linformer(rank=4, shared=shared)
        parameters = parameters_of(linformer, query, key, value)
        first, second = (np.float64(parameters[name]) for name in (('projection',) * 2 if shared else ('key', 'value')))
        short = [np.zeros((2, 4, 2, 3)) for _ in range(2)]
        lengths = LENGTHS if isinstance(mask, Padding) else (9, 9)
        for b, r in np.ndindex(2, 4):
            for s in range(lengths[b]):
                short[0][b, r] += first[r, s] * key[b, s]
                short[1][b, r] += second[r, s] * value[b, s]
        wanted = attention(query, *short, np.ones((2, 9, 4), bool))
        got = output(linformer, parameters, query, key, value, mask)
        np.testing.assert_allclose(got, wanted, atol=2e-6)
        np.testing.assert_allclose(times(weights(linformer, parameters, query, key, value, mask), value), got, atol=2e-6)

    def test_two_sources(self):
        query, key, value = drawn(queries=4)
        parameters = parameters_of(Linformer(rank=5), query, key, value)
        short = [np.einsum('rs,bskh->brkh', np.float64(parameters[name]), x) for name, x in (('key', key), ('value', value))]
        wanted = attention(query, *short, np.ones((2, 4, 5), bool))
        np.testing.assert_allclose(output(Linformer(rank=5), parameters, query, key, value, Full()), wanted, atol=2e-6)

    def test_identities_of_full_rank_give_softmax_attention(self):
        query, key, value = drawn()
        got = output(Linformer(rank=9), {'key': np.eye(9), 'value': np.eye(9)}, query, key, value, Full())
        np.testing.assert_allclose(got, attention(query, key, value, np.ones((2, 9, 9), bool)), atol=2e-6)

    def test_a_rank_of_nothing_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'rank is 0; expected at least 1'):
            Linformer(rank=0)


class MemoryCompressedTest(parameterized.TestCase):
    @parameterized.parameters(1, 8)
    def test_initial_windows_have_one_size_for_any_number_of_heads(self, heads):
        arrays = drawn(heads=heads, key_heads=heads, width=32)
        for one in MemoryCompressed(factor=3).parameters(*arrays).values():
            kernel = one.initialiser(jax.random.key(0), one.shape)
            self.assertEqual(kernel.shape, (3, heads, 32, 32))
            self.assertAlmostEqual(float(jnp.square(kernel).mean()), 2 / (3 * 32 + 32), delta=1e-3)  # Xavier's

    @parameterized.product(factor=(1, 2, 3), mask=(
        Full(), Causal(), Causal() & Window(4), Padding(LENGTHS), Causal() & DOCUMENTS, DOCUMENTS & Padding(LENGTHS)))
    def test_equals_a_float64_loop(self, factor, mask):
        query, key, value = drawn()
        compressed = MemoryCompressed(factor=factor)
        parameters = parameters_of(compressed, query, key, value)
        seen = visible(mask, 9, 9, 2)
        numbers = SEGMENTS.copy() if 'Segments' in str(mask) else np.ones((2, 9), int)
        if 'Padding' in str(mask):
            numbers[0, 5:] = 0
        wanted = np.zeros(query.shape)
        for b in range(2):
            windows = []  # of each document from its first position on
            for number in set(numbers[b]) - {0}:
                places = np.flatnonzero(numbers[b] == number)
                windows += [places[i:i + factor] for i in range(0, len(places) - factor + 1, factor)]
            mixed = [np.array([sum(np.einsum('kh,khj->kj', x[b, s], np.float64(parameters[name][j]))
                                   for j, s in enumerate(window)) for window in windows])[None]
                     for name, x in (('key', key), ('value', value))]
            shown = np.array([[seen[b, t, window].all() for window in windows] for t in range(9)])[None]
            wanted[b] = attention(query[b][None], *mixed, shown)[0]
        np.testing.assert_allclose(output(compressed, parameters, query, key, value, mask), wanted, atol=3e-6)

    @parameterized.parameters(Full(), Causal(), Causal() & DOCUMENTS)
    def test_a_kernel_of_one_that_is_the_identity_gives_softmax_attention(self, mask):
        query, key, value = drawn()
        one = np.broadcast_to(np.eye(3), (1, 2, 3, 3))
        got = output(MemoryCompressed(factor=1), {'key': one, 'value': one}, query, key, value, mask)
        np.testing.assert_allclose(got, attention(query, key, value, visible(mask, 9, 9, 2)), atol=2e-6)

    def test_the_first_positions_and_short_rows_see_nothing(self):
        query, key, value = drawn()
        compressed = MemoryCompressed(factor=4)
        parameters = parameters_of(compressed, query, key, value)
        out = output(compressed, parameters, query, key, value, Causal())
        np.testing.assert_array_equal(out[:, :3], 0.0)
        self.assertTrue((out[:, 3:] != 0).all())
        short = output(compressed, parameters, *(x[:, :3] for x in (query, key, value)), Full())
        np.testing.assert_array_equal(short, np.zeros((2, 3, 4, 3)))

    def test_two_sources(self):
        query, key, value = drawn(queries=4)
        compressed = MemoryCompressed()
        self.assertEqual(compressed.factor, 3)  # as in the paper
        parameters = parameters_of(compressed, query, key, value)
        windows = lambda x: x.reshape(2, 3, 3, 2, 3)  # [B, W, j, K, H]
        short = [np.einsum('bwjkh,jkhi->bwki', windows(x), np.float64(parameters[name]))
                 for name, x in (('key', key), ('value', value))]
        seen = visible(Window(4), 4, 9, 2).reshape(2, 4, 3, 3).all(-1)
        np.testing.assert_allclose(output(compressed, parameters, query, key, value, Window(4)), attention(query, *short, seen),
                                   atol=3e-6)

    def test_a_factor_of_nothing_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'factor is 0; expected at least 1'):
            MemoryCompressed(factor=0)


if __name__ == '__main__':
    absltest.main()
