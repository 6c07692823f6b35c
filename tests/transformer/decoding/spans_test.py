import itertools
import json
import random
import re

import numpy as np
from absl.testing import absltest, parameterized

from data.text.questions import ContextWindow
from tests.recorded import REFERENCE
from tests.reference import record_seqeval
from transformer.decoding.spans import SpanAnswer, best_spans, named_spans


def window(question, first, words, context):
    ranges = [next(m.span() for m in re.finditer(rf'\b{word}\b', context)) for word in words]
    return ContextWindow(question, first, np.array(ranges, np.int32), context)


class BestSpansTest(parameterized.TestCase):
    CONTEXT = 'one two three four five six'

    def test_by_hand(self):
        windows = [window(0, 2, ['one', 'two', 'three'], self.CONTEXT), window(0, 2, ['three', 'four'], self.CONTEXT),
                   window(7, 1, ['six'], self.CONTEXT)]
        starts = [[9, 9, 0, 3, 5, 9], [4, 0, 2, 1, 0, 0], [0, 1, 0, 0, 0, 0]]
        ends = [[9, 9, 8, 3, 1, 9], [-1, 0, 1, 3, 0, 0], [2, 0, 0, 0, 0, 0]]
        # first question: 'one' 8, 'one two' 3, 'two' 6, 'two three' 4, 'three' 6 and 3, 'three four' 5, 'four' 4
        best = best_spans(starts, ends, windows, count=4)
        self.assertEqual(best[0], [SpanAnswer('one', 8, 0, 3), SpanAnswer('two', 6, 4, 7), SpanAnswer('three', 6, 8, 13),
                                   SpanAnswer('three four', 5, 8, 18)])
        self.assertEqual(best[1], [SpanAnswer('six', 1, 24, 27)])
        null = best_spans(starts, ends, windows, null=0.0)
        self.assertEqual([answers[0].text for answers in null], ['one', ''])  # 18 and 3: the least is 3; 2 is more than 1
        self.assertEqual(best_spans(starts, ends, windows, null=-1.5)[1][0].text, 'six')
        self.assertEqual(best_spans(starts, ends, windows, null=5.5)[0][0], SpanAnswer('', 8.5, 0, 0))

    @parameterized.product(longest=[1, 2, 4, 9], count=[1, 3, 100])
    def test_as_trying_all(self, longest, count):
        draw = np.random.default_rng(longest * count)
        words, windows, expected = self.CONTEXT.split(), [], []
        starts, ends = draw.normal(size=(2, 10, 12))
        for question in range(5):
            scores = {}
            for row, first in ((2 * question, 0), (2 * question + 1, 2)):
                windows.append(window(question, 3, words[first:first + 4], self.CONTEXT))
                for i, j in itertools.product(range(4), range(4)):
                    if i <= j < i + longest:
                        text = ' '.join(words[first + i:first + j + 1])
                        scores[text] = max(scores.get(text, -np.inf), starts[row, 3 + i] + ends[row, 3 + j])
            expected.append(sorted(scores.items(), key=lambda item: -item[1])[:count])
        found = best_spans(starts.astype(np.float64), ends, windows, longest, count)
        self.assertEqual([[answer.text for answer in answers] for answers in found],
                         [[text for text, _ in answers] for answers in expected])
        np.testing.assert_allclose([answer.score for answers in found for answer in answers],
                                   [score for answers in expected for _, score in answers], rtol=1e-12)

    def test_rows_and_windows_belong_together(self):
        with self.assertRaisesRegex(ValueError, '2 and 2 rows of logits were given for 1 windows'):
            best_spans(np.zeros((2, 9)), np.zeros((2, 9)), [window(0, 1, ['six'], self.CONTEXT)])

    def test_tokens_of_white_space_alone_are_no_answer(self):
        blank = ContextWindow(0, 0, np.array([[0, 3], [3, 3]], np.int32), self.CONTEXT)
        self.assertEqual(best_spans([[1, 9.0]], [[1, 9.0]], [blank], count=5), [[SpanAnswer('one', 2.0, 0, 3)]])

    @parameterized.parameters(None, 0.5)
    def test_a_context_without_tokens_has_no_answer(self, null):
        nothing = ContextWindow(0, 3, np.zeros((0, 2), np.int32), '\u200b')
        self.assertEqual(best_spans([[1, 9, 9, 9]], [[2, 9, 9, 9]], [nothing], null=null),
                         [[SpanAnswer('', 3 + (null or 0.0), 0, 0)]])


def of_conlleval(tags):
    """startOfChunk and endOfChunk of conlleval.pl, as they are in it, for the tags O, B and I."""
    found, begin, last_tag, last_type = set(), None, 'O', ''
    for place, given in enumerate([*tags, 'O']):
        tag, _, kind = given.partition('-')
        ends = any(((last_tag, tag) in {('B', 'B'), ('B', 'O'), ('I', 'B'), ('I', 'O')},
                    last_tag not in ('O', '.') and last_type != kind))
        starts = any(((last_tag, tag) in {('B', 'B'), ('I', 'B'), ('O', 'B'), ('O', 'I')},
                      tag not in ('O', '.') and last_type != kind))
        if ends:
            found.add((begin, place, last_type))
        begin = place if starts else begin
        last_tag, last_type = tag, kind
    return found


class NamedSpansTest(parameterized.TestCase):
    @parameterized.parameters(
        ('', set()),
        ('O O', set()),
        ('B-x I-x O B-y', {(0, 2, 'x'), (3, 4, 'y')}),
        ('B-x B-x', {(0, 1, 'x'), (1, 2, 'x')}),
        ('I-x I-x O I-y I-x', {(0, 2, 'x'), (3, 4, 'y'), (4, 5, 'x')}),
        ('B-x I-y I-y B-y', {(0, 1, 'x'), (1, 3, 'y'), (3, 4, 'y')}),
        ('B-creative-work I-creative-work', {(0, 2, 'creative-work')}),
        ('B-x I-x E-x E-x S-x B-y E-x O', {(0, 3, 'x'), (3, 4, 'x'), (4, 5, 'x'), (5, 6, 'y'), (6, 7, 'x')}),
        ('U-x B-x L-x I-x L-x', {(0, 1, 'x'), (1, 3, 'x'), (3, 5, 'x')}),
    )
    def test_by_hand(self, tags, expected):
        self.assertEqual(named_spans(tags.split()), expected)

    @parameterized.parameters('IOBES', 'BILOU')
    def test_spans_are_the_same_in_every_scheme(self, scheme):
        last, alone = ('E', 'S') if scheme == 'IOBES' else ('L', 'U')
        draw = random.Random(0)
        for _ in range(500):
            plain, marked = [], []
            for kind, size in zip(draw.choices(['', 'x', 'y'], k=5), draw.choices([1, 2, 3], k=5)):
                inside = [f'I-{kind}'] * (size - 2)
                plain += [f'B-{kind}', *[f'I-{kind}'] * (size - 1)] if kind else ['O']
                marked += ([f'{alone}-{kind}'] if size == 1 else [f'B-{kind}', *inside, f'{last}-{kind}']) if kind else ['O']
            for strict in (False, True):
                self.assertEqual(named_spans(marked, strict), named_spans(plain, strict), marked)

    def test_strictly_none_begins_inside_or_at_the_end(self):
        self.assertEqual(named_spans(['I-x', 'E-x', 'O', 'B-x', 'E-x', 'E-x'], strict=True), {(3, 5, 'x')})

    def test_as_conlleval(self):
        draw = random.Random(0)
        for _ in range(2000):
            tags = draw.choices(['O', 'B-x', 'I-x', 'B-y', 'I-y'], k=draw.randrange(9))
            self.assertEqual(named_spans(tags), of_conlleval(tags), tags)

    def test_as_seqeval(self):
        """F1 of 1,000 random sequences, illegal ones too, by default and strictly, as tests/reference/record_seqeval.py has
        recorded it."""
        for said, right, usual, strictly in json.loads((REFERENCE / 'seqeval.json').read_text()):
            for strict, wanted in ((False, usual), (True, strictly)):
                a, b = (named_spans([record_seqeval.SIGNS[sign] for sign in tags], strict) for tags in (said, right))
                found = 2 * len(a & b) / (len(a) + len(b)) if a or b else 0.0
                self.assertAlmostEqual(found, wanted, places=12, msg=f'{said} {right} {strict}')

    @parameterized.parameters('NN', 'X-x', 'B-', 'B', 'S')
    def test_other_tags(self, tag):
        with self.assertRaisesRegex(ValueError, f"The tag '{tag}' belongs to no span"):
            named_spans(['O', tag])


if __name__ == '__main__':
    absltest.main()
