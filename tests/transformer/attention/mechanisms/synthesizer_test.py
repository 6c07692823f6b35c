import functools
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import drawn, output, parameters_of, times, visible, weights
from tests.models import build
from transformer.attention.masks.data import Marked, Padding, Segments
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.attention.mechanism import AlternateAttention, Given, Softmax
from transformer.attention.mechanisms import synthesizer
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.models.gpt import Gpt

SEGMENTS = np.array([[1] * 4 + [2] * 3 + [0] * 2, [3] + [1] * 8])
PREFIX = np.array([[1, 1, 0, 0, 1, 0, 0, 0, 0], [0] + [1] * 3 + [0] * 5])
PLACES = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 1], [0] + [*range(8)]])
MASKS = {'full': Full(), 'causal': Causal(), 'window': Causal() & Window(3), 'padding': Padding(np.array([5, 9])),
         'documents': Causal() & Segments(SEGMENTS, SEGMENTS),
         'prefixes': (Causal() | Marked(PREFIX)) & Segments(SEGMENTS, SEGMENTS)}
KINDS = {'dense': Synthesizer(length=12), 'dense_inner': Synthesizer(length=12, rank=5),
         'random': Synthesizer('random', length=12), 'factorized': Synthesizer('random', length=12, rank=2)}


def naive(synthesizer, p, query, value, mask):
    """[B, T, N, H] and the weights [B, N, T, S], in float64."""
    seen, places = visible(mask, 9, 9, 2), PLACES if 'Segments' in str(mask) else np.broadcast_to(np.arange(9), (2, 9))
    p, heads = {name: np.float64(x) for name, x in p.items()}, 4 if synthesizer.kind == 'dense' else 2
    matrix = np.zeros((2, heads, 9, 9))
    for b, n, t in np.ndindex(2, heads, 9):
        scores = []
        for s in range(9):
            row, column = places[b, t], places[b, s]
            if synthesizer.kind == 'dense':
                inner = np.maximum(query[b, t, n] @ p['kernel'][n] + p['bias'][n], 0)
                scores.append(inner @ p['table'][column, n] + p['offset'][n, column])
            elif synthesizer.rank:
                scores.append(p['query'][row, n] @ p['key'][column, n])
            else:
                scores.append(p['scores'][n, row, column])
        if seen[b, t].any():
            w = np.where(seen[b, t], np.exp(scores), 0.0)
            matrix[b, n, t] = w / w.sum()
    return times(matrix, value), matrix


class SynthesizerTest(parameterized.TestCase):
    @parameterized.product(kind=[*KINDS], mask=[*MASKS])
    def test_equals_a_float64_loop(self, kind, mask):
        (query, _, value), synthesizer, mask = drawn(), KINDS[kind], MASKS[mask]
        parameters = parameters_of(synthesizer, query, None, value, scale=1.0)
        out, matrix = naive(synthesizer, parameters, query, value, mask)
        np.testing.assert_allclose(output(synthesizer, parameters, query, None, value, mask), out, atol=3e-6)
        np.testing.assert_allclose(weights(synthesizer, parameters, query, None, value, mask), matrix, atol=3e-6)

    @parameterized.parameters(*KINDS.values())
    def test_every_kernel_gives_the_same_where_queries_share_values(self, form):
        query, _, value = drawn()
        parameters = parameters_of(form, query, None, value)
        wanted = output(form, parameters, query, None, value, Causal())
        with mock.patch.object(synthesizer, 'attend', functools.partial(synthesizer.attend, implementation='blockwise')):
            got = form(parameters, query, None, value, Given(Causal()))
        np.testing.assert_allclose(got, wanted, atol=2e-6)

    @parameterized.parameters(*KINDS.values())
    def test_keys_do_not_matter(self, synthesizer):
        self.assertNotIn('key', synthesizer.projections)
        self.assertEqual('query' in synthesizer.projections, synthesizer.kind == 'dense')

    @parameterized.parameters(*KINDS.values())
    def test_shorter_rows_use_the_first_positions_and_longer_ones_are_refused(self, synthesizer):
        query, _, value = drawn(queries=13, keys=13)
        parameters = parameters_of(synthesizer, query, None, value)
        short = [output(synthesizer, parameters, query[:, :n], None, value[:, :n], Causal()) for n in (5, 12)]
        np.testing.assert_allclose(short[0], short[1][:, :5], atol=2e-6)
        with self.assertRaisesRegex(ValueError, r'is asked for 13 positions, more than its length; .*train with length=13\.'):
            output(synthesizer, parameters, query, None, value, Causal())
        model = build(Gpt, vocab=5, length=13, layers=1, heads=2, width=8, attention=AlternateAttention(Softmax(), synthesizer))
        with self.assertRaisesRegex(ValueError, 'asked for 13 positions, more than its length'):  # also for shorter rows
            jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros((1, 5), int)))

    def test_bad_fields_are_refused(self):
        with self.assertRaisesRegex(ValueError, "kind is 'sparse'; expected one of dense, random"):
            Synthesizer('sparse')
        for bad in (dict(length=0), dict(rank=-1)):
            with self.assertRaisesRegex(ValueError, 'expected a length of 1 or more and a rank of 0 or more'):
                Synthesizer(**bad)


if __name__ == '__main__':
    absltest.main()
