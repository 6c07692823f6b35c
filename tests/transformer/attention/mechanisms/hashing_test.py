import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import drawn, output, times, weights
from transformer.attention.masks.data import Padding
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanism import Given
from transformer.attention.mechanisms.hashing import Hashing


def naive(hashing, query, value, lengths, seen=None):
    """Hash, sort, cut into chunks, attend, and join the rounds, one position at a time in float64."""
    query, value = np.float64(query), np.repeat(np.float64(value), query.shape[2] // value.shape[2], 2)
    batch, length, heads, width = query.shape
    chunk, out = min(hashing.chunk, length), np.zeros(query.shape)
    for b, n in np.ndindex(batch, heads):
        q, v, found = query[b, :, n], value[b, :, n], []
        for number in range(hashing.rounds):
            buckets = np.zeros(length, int)
            if hashing.buckets > 1:
                rotation = np.random.default_rng((hashing.seed, number)).normal(size=(width, hashing.buckets // 2))
                buckets = np.concatenate([q @ np.float32(rotation), -q @ np.float32(rotation)], 1).argmax(1)
            buckets[lengths[b]:] = hashing.buckets
            order = sorted(range(length), key=lambda t: (buckets[t], t))
            in_chunk = {t: i // chunk for i, t in enumerate(order)}
            results = []
            for t in range(length):
                near = [s for s in range(lengths[b]) if buckets[s] == buckets[t] and 0 <= in_chunk[t] - in_chunk[s] <= 1
                        and (seen is None or seen[t, s])]
                scores = np.array([-1e5 if s == t else q[t] @ q[s] / np.linalg.norm(q[s]) / np.sqrt(width) for s in near])
                top = scores.max() if near else 0.0
                w = np.exp(scores - top)
                results.append((w @ v[near] / w.sum(), top + np.log(w.sum())) if near else (np.zeros(width), -1e30))
            found.append(results)
        for t in range(length):
            sums = np.array([results[t][1] for results in found])
            share = np.exp(sums - sums.max())
            out[b, t, n] = sum(w * results[t][0] for w, results in zip(share / share.sum(), found))
    return out


class HashingTest(parameterized.TestCase):
    @parameterized.parameters(
        (Hashing(buckets=2, chunk=3, rounds=1),), (Hashing(buckets=4, chunk=4, rounds=3),),
        (Hashing(buckets=1, chunk=2, rounds=2),),
        (Hashing(buckets=2, chunk=5, rounds=2), (4, 9)), (Hashing(buckets=2, rounds=1, seed=3), (9, 7)))
    def test_equals_a_float64_loop(self, hashing, lengths=(9, 9)):
        query, _, value = drawn()
        mask = Full() if lengths == (9, 9) else Padding(np.array(lengths))
        got, wanted = output(hashing, {}, query, None, value, mask), naive(hashing, query, value, lengths)
        for b, length in enumerate(lengths):
            np.testing.assert_allclose(got[b, :length], wanted[b, :length], atol=2e-5)
        np.testing.assert_allclose(times(weights(hashing, {}, query, None, value, mask), value), got, atol=1e-5)

    def test_patterns_hide_pairs(self):
        (query, _, value), hashing = drawn(), Hashing(buckets=2, chunk=4, rounds=2)
        row = np.arange(9)
        wanted = naive(hashing, query, value, (9, 9), Window(3)(row, row))
        np.testing.assert_allclose(output(hashing, {}, query, None, value, Window(3)), wanted, atol=2e-5)

    @parameterized.parameters(1, 3)
    def test_one_bucket_and_one_chunk_give_attention_with_queries_as_keys(self, rounds):
        query, _, value = drawn()
        got = output(Hashing(buckets=1, chunk=9, rounds=rounds), {}, query, None, value, Full())
        key = query / np.linalg.norm(query, axis=-1, keepdims=True)
        scores = np.einsum('btnh,bsnh->bnts', query, key) / np.sqrt(3)
        scores[..., range(9), range(9)] = -1e5
        matrix = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(got, times(matrix / matrix.sum(-1, keepdims=True), value), atol=2e-6)

    def test_there_is_no_causal_form(self):
        # Every later position is masked, and yet it decides where chunks end: what the declaration rests on.
        (query, _, value), hashing = drawn(queries=12, keys=12), Hashing(buckets=2, chunk=2, rounds=1)
        before = output(hashing, {}, query, None, value, Causal())
        moved = []
        for seed in range(1, 6):
            other = query.copy()
            other[:, 6:] = drawn(seed, queries=12)[0][:, 6:]
            moved.append(np.abs(output(hashing, {}, other, None, value, Causal()) - before)[:, :6].max())
        self.assertGreater(max(moved), 1e-2)
        self.assertFalse(Hashing.causal)

    def test_work_grows_with_the_length_and_not_its_square(self):
        from training.report import flops
        count = lambda length: flops.count(lambda q, v: Hashing(chunk=8)({}, q, None, v, Given()), *(
            jax.ShapeDtypeStruct((1, length, 2, 4), 'float32'),) * 2)
        self.assertEqual(count(512), 2 * count(256))

    def test_dropout_draws_for_each_round(self):
        (query, _, _), hashing = drawn(), Hashing(buckets=1, chunk=9, rounds=2)
        one_hot = np.broadcast_to(np.eye(9, dtype=np.float32)[:, None], (2, 9, 4, 9))
        still = output(hashing, {}, query, None, one_hot, Full())
        dropped = output(hashing, {}, query, None, one_hot, Full(), rate=0.5, dropout_key=jax.random.key(0))
        others = still > 0  # not a position itself
        self.assertEqual(set(np.round(dropped[others] / still[others], 3)), {0.0, 1.0, 2.0})  # kept by none, one, or both

    def test_bad_fields_are_refused(self):
        for buckets in (0, 3):
            with self.assertRaisesRegex(ValueError, f'buckets is {buckets}; expected an even number, or 1'):
                Hashing(buckets=buckets)
        for bad in (dict(chunk=0), dict(rounds=0)):
            with self.assertRaisesRegex(ValueError, 'expected a chunk and rounds of at least 1'):
                Hashing(**bad)


if __name__ == '__main__':
    absltest.main()
