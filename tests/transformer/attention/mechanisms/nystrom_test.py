import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import attention, drawn, output, times, weights
from transformer.attention.masks.data import Padding
from transformer.attention.masks.patterns import Full
from transformer.attention.mechanisms.nystrom import Nystrom


def softmax(scores):
    w = np.exp(scores - scores.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


def naive(nystrom, query, key, value, lengths, inverse=None):
    """The product of three matrices for each head in float64."""
    query, share = np.float64(query), query.shape[2] // key.shape[2]
    out, marks = np.zeros(query.shape), nystrom.landmarks
    for b, n in np.ndindex(query.shape[0], query.shape[2]):
        there = lengths[b]
        q, k, v = query[b, :, n], np.float64(key[b, :there, n // share]), np.float64(value[b, :there, n // share])
        own = q[:there] if len(q) == key.shape[1] else q
        means = lambda x: np.array([rows.mean(0) for m in range(marks) if len(rows := np.array(
            [x[i] for i in range(len(x)) if i * marks // len(x) == m]))])
        q_marks, k_marks, scale = means(own), means(k), 1 / np.sqrt(q.shape[-1])
        near = softmax(q_marks @ k_marks.T * scale)
        out[b, :, n] = softmax(q @ k_marks.T * scale) @ (inverse or iterated)(near, nystrom.iterations) @ softmax(
            q_marks @ k.T * scale) @ v
    return out


def iterated(a, iterations):
    z, eye = a.T / (np.abs(a).sum(0).max() * np.abs(a).sum(1).max()), np.eye(len(a))
    for _ in range(iterations):
        z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
    return z


class NystromTest(parameterized.TestCase):
    @parameterized.parameters((4, (9, 9)), (9, (9, 9)), (3, (5, 9)), (6, (4, 9)), (2, (1, 8)))
    def test_equals_a_float64_loop(self, landmarks, lengths):
        query, key, value = drawn()
        nystrom = Nystrom(landmarks=landmarks, iterations=4)
        mask = Full() if lengths == (9, 9) else Padding(np.array(lengths))
        got = output(nystrom, {}, query, key, value, mask)
        np.testing.assert_allclose(got, naive(nystrom, query, key, value, lengths), atol=3e-5)
        np.testing.assert_allclose(times(weights(nystrom, {}, query, key, value, mask), value), got, atol=1e-5)

    @parameterized.parameters(9, 16)
    def test_as_many_landmarks_as_positions_give_softmax_attention(self, landmarks):
        query, key, value = drawn(width=8)
        got = output(Nystrom(landmarks=landmarks, iterations=25), {}, 2 * query, 2 * key, value, Full())
        np.testing.assert_allclose(got, attention(2 * query, 2 * key, value, np.ones((2, 9, 9), bool)), atol=2e-3)

    def test_the_iteration_comes_near_the_pseudo_inverse(self):
        query, key, value = drawn(width=8)
        wanted = naive(Nystrom(landmarks=4), query, key, value, (9, 9), inverse=lambda a, _: np.linalg.pinv(a))
        errors = [np.abs(output(Nystrom(4, n), {}, query, key, value, Full()) - wanted).max() for n in (2, 6, 14)]
        self.assertGreater(errors[0], errors[1])
        self.assertLess(errors[2], 2e-3)

    def test_bad_fields_are_refused(self):
        for bad in (dict(landmarks=0), dict(iterations=-1)):
            with self.assertRaisesRegex(ValueError, 'expected at least 1 landmark and at least 0 iterations'):
                Nystrom(**bad)


if __name__ == '__main__':
    absltest.main()
