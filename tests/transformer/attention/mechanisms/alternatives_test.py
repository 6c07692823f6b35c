import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import drawn, output, parameters_of
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal, Full
from transformer.attention.mechanism import Given
from transformer.attention.mechanisms.alternatives import Convolution, Recurrence

SEGMENTS = np.array([[1] * 4 + [2] * 3 + [0] * 2, [3] + [1] * 8])
DOCUMENTS, LENGTHS = Segments(SEGMENTS, SEGMENTS), Padding(np.array([5, 9]))


def numbers(mask):
    found = SEGMENTS.copy() if 'Segments' in str(mask) else np.ones((2, 9), int)
    if 'Padding' in str(mask):
        found[0, 5:] = 0
    return found


class ConvolutionTest(parameterized.TestCase):
    @parameterized.product(kernel=(1, 2, 3, 4), mask=(
        Full(), Causal(), DOCUMENTS, Causal() & DOCUMENTS, LENGTHS, Causal() & LENGTHS))
    def test_equals_a_float64_loop(self, kernel, mask):
        value = drawn()[2]
        convolution = Convolution(kernel)
        parameters = parameters_of(convolution, None, None, value)
        before = kernel - 1 if mask.causal else kernel // 2
        x, of, wanted = np.float64(value).reshape(2, 9, 6), numbers(mask), np.zeros((2, 9, 6))
        for b, t, j in np.ndindex(2, 9, kernel):
            s = t + j - before
            if 0 <= s < 9 and of[b, s] and (of[b, s] == of[b, t] or 'Segments' not in str(mask)):
                wanted[b, t] += x[b, s] @ parameters['kernel'][j]
        wanted += parameters['bias']
        got = output(convolution, parameters, None, None, value, mask)
        np.testing.assert_allclose(got, wanted.reshape(value.shape), atol=5e-6)

    def test_a_kernel_of_nothing_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'kernel is 0; expected at least 1'):
            Convolution(0)


class RecurrenceTest(parameterized.TestCase):
    @parameterized.product(gated=(False, True), mask=(Causal(), Causal() & DOCUMENTS, Causal() & LENGTHS))
    def test_equals_a_float64_loop(self, gated, mask):
        value = drawn()[2]
        recurrence = Recurrence(gated)
        parameters = {k: np.float64(v) for k, v in parameters_of(recurrence, None, None, value).items()}
        sigmoid = lambda a: 1 / (1 + np.exp(-a))
        x, of, wanted = np.float64(value).reshape(2, 9, 6), numbers(mask), np.zeros((2, 9, 6))
        for b in range(2):
            state = np.zeros(6)
            for t in range(9):
                if t and of[b, t] != of[b, t - 1] and 'Segments' in str(mask):
                    state = np.zeros(6)
                if of[b, t]:
                    turned, bias = state @ parameters['recurrent'], parameters['bias']
                    if gated:
                        gates = sigmoid(x[b, t] @ parameters['input'] + turned[:12] + bias[:12])
                        new = np.tanh(x[b, t] + gates[6:] * turned[12:] + bias[12:])
                        state = (1 - gates[:6]) * state + gates[:6] * new
                    else:
                        state = np.tanh(x[b, t] + turned + bias)
                if of[b, t] or 'Segments' not in str(mask):
                    wanted[b, t] = state
        got = output(recurrence, jax.tree.map(np.float32, parameters), None, None, value, mask)
        np.testing.assert_allclose(got, wanted.reshape(value.shape), atol=5e-6)

    @parameterized.parameters(Recurrence(), Convolution(4), Convolution(1))
    def test_a_state_that_skips_a_position_gives_nan(self, mechanism):
        value = drawn()[2][:, :2]
        parameters = parameters_of(mechanism, None, None, value)
        cache = mechanism.empty_cache(2, 9, 2, 2, 3, 'float32')
        out, _ = mechanism.step(parameters, None, None, value, cache, np.array([[0, 1], [1, 2]]), Given(Causal()))
        self.assertTrue(np.isfinite(out[0]).all())
        self.assertTrue(np.isnan(out[1]).all())

    def test_initial_recurrences_keep_the_length_of_a_state(self):
        wanted = Recurrence().parameters(None, None, np.zeros((1, 1, 2, 3)))['recurrent']
        for matrix in np.split(np.asarray(wanted.initialiser(jax.random.key(0), wanted.shape)), 3, 1):
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(6), atol=1e-5)


if __name__ == '__main__':
    absltest.main()
