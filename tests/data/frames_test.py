import itertools

import numpy as np
import tokenizers as library
from absl.testing import absltest, parameterized

from data import tokenizers
from data.frames import Frame, rows
from tests.data import tiny_tokenizers


def truncated(first, second, room):
    """The loop of Devlin's code, `_truncate_seq_pair`."""
    first, second = [*first], [*second]
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


class FramesTest(parameterized.TestCase):
    def tokenizer(self, kind):
        return tokenizers.learn(getattr(tiny_tokenizers, kind)(self.folder), ())

    @parameterized.parameters(('bert', 'word_piece'), ('roberta', 'byte_level'), ('t5', 'unigram'))
    def test_special_tokens_are_those_that_the_library_adds(self, style, kind):
        tokenizer = self.tokenizer(kind)
        made = library.Tokenizer.from_str(tokenizer.contents.decode())
        pair = lambda sign: (sign, tokenizer.number(sign))
        made.post_processor = {
            'bert': lambda: library.processors.BertProcessing(pair('[SEP]'), pair('[CLS]')),
            'roberta': lambda: library.processors.RobertaProcessing(pair('</s>'), pair('<s>')),
            't5': lambda: library.processors.TemplateProcessing('$A </s>', '$A </s> $B </s>', [pair('</s>')]),
        }[style]()
        frame = Frame.of(style, tokenizer)
        for texts in (('the one',), ('the one', 'two, three!')):
            expected = made.encode(*texts)
            ids, types = frame.framed(*map(tokenizer.encode, texts))
            self.assertEqual((ids.tolist(), types.tolist()), (expected.ids, expected.type_ids))
            self.assertEqual((ids.dtype, types.dtype), (np.int32, np.int32))
            self.assertEqual(frame.extra(len(texts) == 2), made.num_special_tokens_to_add(len(texts) == 2))
        self.assertEqual(frame.mask, {'bert': 4, 'roberta': 4, 't5': -1}[style])
        self.assertEqual(Frame.of('', tokenizer), frame)  # it is found

    def test_plain_texts_have_no_special_tokens(self):
        frame = Frame.of('plain', tokenizers.Byte())
        self.assertEqual([part.tolist() for part in frame.framed([5, 6], [7])], [[5, 6, 7], [0, 0, 0]])
        self.assertEqual((frame.begin, frame.end, frame.mask, frame.extra(True)), (-1, -1, -1, 0))
        self.assertEqual(Frame.of('', tokenizers.Byte()), frame)

    def test_marks_stand_for_the_names_of_special_tokens(self):
        frame = Frame.of('bert', tokenizers.Byte(), (250, 251, -1))
        self.assertEqual([part.tolist() for part in frame.framed([1], [2, 3])], [[250, 1, 251, 2, 3, 251], [0, 0, 0, 1, 1, 1]])
        self.assertEqual(Frame.of('t5', tokenizers.Byte(), (-1, 256, -1)).framed([1], [])[0].tolist(), [1, 256, 256])

    @parameterized.parameters(
        ('bart', 'word_piece', (), "data.style='bart' is not known; it takes '', 'bert', 'roberta', 't5', 'plain'"),
        ('roberta', 'word_piece', (), "data.style='roberta' needs the token <s>, which the tokenizer does not have"),
        ('bert', 'unigram', (), r'needs the token \[CLS\]'),
        ('bert', 'word_piece', (2, 3), r'data.marks=\(2, 3\) are not the ids'),
        ('bert', 'word_piece', (2, 3, 9999), 'are not the ids .*; give three below'),
        ('bert', 'word_piece', (2, -2, 4), 'are not the ids'),
        ('', 'word_piece', (2, 3, 4), 'are given without a style; set data.style to one of bert'),
    )
    def test_refused(self, style, kind, marks, message):
        with self.assertRaisesRegex(ValueError, message) as caught:
            Frame.of(style, self.tokenizer(kind), marks)
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters('bert', 'roberta', 't5', 'plain')
    def test_long_texts_lose_their_ends_the_longer_one_first(self, style):
        frame = Frame(style, *{'bert': (1, 2), 'roberta': (1, 2), 't5': (-1, 2), 'plain': (-1, -1)}[style], -1)
        for one, two, room in itertools.product(range(1, 9), range(1, 9), range(2, 18)):
            first, second = np.arange(10, 10 + one), np.arange(30, 30 + two)
            length = room + frame.extra(True)
            ids, types = frame.fitted(first, second, length)
            expected = frame.framed(*truncated(first, second, room))
            np.testing.assert_array_equal([ids, types], expected, err_msg=f'{one} {two} {room}')
            self.assertLessEqual(len(ids), length)
            ids, _ = frame.fitted(first, None, room + frame.extra())
            np.testing.assert_array_equal(ids, frame.framed(first[:room])[0])

    def test_a_row_has_room_for_a_token_of_each_text(self):
        frame = Frame('bert', 1, 2, -1)
        self.assertEqual((frame.room(3), frame.room(5, pair=True)), (1, 2))
        for length, second in ((2, None), (4, [8])):
            with self.assertRaisesRegex(ValueError, f'data.length={length} has no room for .*; it must be {length + 1} or'):
                frame.fitted([7], second, length)

    def test_rows(self):
        frame = Frame('bert', 1, 2, -1)
        batch = rows([frame.framed([7]), frame.framed([7], [8, 9])], 7)
        expected = {
            'inputs': [[1, 7, 2, 0, 0, 0, 0], [1, 7, 2, 8, 9, 2, 0]],
            'segments': [[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]],
            'positions': [[0, 1, 2, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 0]],
            'types': [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0]],
        }
        self.assertEqual({name: array.tolist() for name, array in batch.items()}, expected)
        self.assertEqual({array.dtype for array in batch.values()}, {np.dtype(np.int32)})


if __name__ == '__main__':
    absltest.main()
