import dataclasses
import itertools
import re

import numpy as np
import tokenizers as library
from absl.testing import absltest, parameterized

from data.text.frames import TEMPLATES, Frame, Framed, lacking, named, of_one_type, parse, rows
from data.tokenizers import tokenizer as tokenizers
from data.tokenizers.plain import IdTokenizer
from data.tokenizers.roles import Roles
from tests.data import tiny_tokenizers


def truncated(first, second, room):
    """The loop of Devlin's code, `_truncate_seq_pair`."""
    first, second = [*first], [*second]
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


class FramesTest(parameterized.TestCase):
    def tokenizer(self, kind):
        return getattr(tiny_tokenizers, kind)(self.folder).learn()

    @parameterized.parameters(('bert', 'word_piece'), ('roberta', 'byte_level'), ('t5', 'unigram'))
    def test_special_tokens_are_those_that_the_library_adds(self, framing, kind):
        tokenizer = self.tokenizer(kind)
        made = library.Tokenizer.from_str(tokenizer.contents.decode())
        pair = lambda sign: (sign, tokenizer.number(sign))
        made.post_processor = {
            'bert': lambda: library.processors.BertProcessing(pair('[SEP]'), pair('[CLS]')),
            'roberta': lambda: library.processors.RobertaProcessing(pair('</s>'), pair('<s>')),
            't5': lambda: library.processors.TemplateProcessing('$A </s>', '$A </s> $B </s>', [pair('</s>')]),
        }[framing]()
        frame = Frame.of(framing, tokenizer)
        for texts in (('the one',), ('the one', 'two, three!')):
            expected = made.encode(*texts)
            ids, types = frame.framed(*map(tokenizer.encode, texts))
            self.assertEqual((ids.tolist(), types.tolist()), (expected.ids, expected.type_ids))
            self.assertEqual((ids.dtype, types.dtype), (np.int32, np.int32))
            self.assertEqual(frame.extra(len(texts) == 2), made.num_special_tokens_to_add(len(texts) == 2))
        self.assertEqual(frame.mask, {'bert': 4, 'roberta': 4, 't5': -1}[framing])
        self.assertEqual(Frame.of('', tokenizer), frame)  # by its roles
        told = tokenizers.JsonTokenizer(made.to_str().encode())
        self.assertEqual((named(told.framing), Frame.of('', told)), (framing, frame))

    @parameterized.parameters((Roles(begin=1, separator=2, cls=3), (1, 2, 3)), (Roles(begin=4, end=4), (4, 4, 4)))
    def test_start_delimiter_and_extract_tokens(self, roles, tokens):
        """Of GPT-1; GPT-2's tokenizer has one token for all."""
        start, delimiter, extract = tokens
        frame = Frame.of('gpt', IdTokenizer(9, roles))
        self.assertEqual(frame.framed([7, 8])[0].tolist(), [start, 7, 8, extract])
        self.assertEqual(frame.framed([7, 8], [6])[0].tolist(), [start, 7, 8, delimiter, 6, extract])

    @parameterized.parameters(
        ('cls a separator:1 | cls a separator mask b:1 separator:1', '<x> $A <y>:1', '<x> $A <y> <z> $B:1 <y>:1', True),
        ('begin a | begin a begin b', '<x> $A', '<x> $A <x> $B', False), ('a | a b:1', '$A', '$A $B:1', True))
    def test_any_template_of_a_file_whatever_its_tokens_are_called(self, framing, single, pair, sequence):
        made = library.Tokenizer(library.models.WordLevel({'[UNK]': 0, 'a': 1, 'b': 2}, unk_token='[UNK]'))
        made.pre_tokenizer = library.pre_tokenizers.Whitespace()
        made.add_special_tokens(['<x>', '<y>', '<z>'])
        template = library.processors.TemplateProcessing(single, pair, [('<x>', 3), ('<y>', 4), ('<z>', 5)])
        made.post_processor = library.processors.Sequence([library.processors.ByteLevel(), template]) if sequence else template
        roles = {'cls': '<x>', 'separator': '<y>', 'mask': '<z>'} if 'cls' in framing else {'begin': '<x>', 'end': '<y>'}
        tokenizer = tokenizers.JsonTokenizer(made.to_str().encode(), tuple(roles.items()))
        self.assertEqual(tokenizer.framing, framing)
        frame = Frame.of('', tokenizer)
        for texts in (('a b a',), ('a', 'b b')):
            expected = made.encode(*texts)
            found = [x.tolist() for x in frame.framed(*map(tokenizer.encode, texts))]
            self.assertEqual(found, [expected.ids, expected.type_ids])

    def test_a_file_with_a_token_without_a_role(self):
        tokenizer = self.tokenizer('byte_level')
        made = library.Tokenizer.from_str(tokenizer.contents.decode())
        made.post_processor = library.processors.RobertaProcessing(('</s>', 2), ('<s>', 0))
        told = tokenizers.JsonTokenizer(made.to_str().encode(), (('end', '</s>'),))
        with self.assertRaisesRegex(ValueError, r"puts '<s>' around texts, .* no role; state it, as in Json\(cls='<s>'\), or"):
            Frame.of('', told)
        self.assertEqual(Frame.of('t5', told).end, 2)

    def test_plain_texts_have_no_special_tokens(self):
        frame = Frame.of('plain', tokenizers.ByteTokenizer())
        self.assertEqual([part.tolist() for part in frame.framed([5, 6], [7])], [[5, 6, 7], [0, 0, 0]])
        self.assertEqual((frame.before, frame.end, frame.mask, frame.extra(True), frame.special), ((), -1, -1, 0, frozenset()))
        self.assertEqual(Frame.of('', tokenizers.ByteTokenizer()), frame)

    def test_roles_of_bare_ids(self):
        frame = Frame.of('bert', IdTokenizer(300, Roles(cls=250, separator=251)))
        self.assertEqual([part.tolist() for part in frame.framed([1], [2, 3])], [[250, 1, 251, 2, 3, 251], [0, 0, 0, 1, 1, 1]])
        self.assertEqual((frame.before, frame.end, frame.types, frame.second(7)), ((250,), 251, 2, 9))
        self.assertEqual(Frame.of('t5', IdTokenizer(300, Roles(end=256))).framed([1], [])[0].tolist(), [1, 256, 256])
        # where there is no class nor separator, what begins and ends a text does their work
        frame = Frame.of('roberta', IdTokenizer(300, Roles(begin=1, end=2, mask=9)))
        self.assertEqual(frame.framed([7], [8])[0].tolist(), [1, 7, 2, 2, 8, 2])
        self.assertEqual((frame.special, frame.types), ({1, 2, 9}, 1))

    def test_templates_and_their_names(self):
        for name, template in TEMPLATES.items():
            self.assertEqual((named(template), named(name), parse(template)), (name, name, parse(name)))
        self.assertEqual(named('begin a | begin a b'), 'begin a | begin a b')
        self.assertEqual(of_one_type('bert'), 'cls a separator | cls a separator b separator')
        self.assertEqual(of_one_type('a | a b:1'), 'plain')

    @parameterized.parameters('bart', '', 'a', 'a | a', 'a | b a', 'cls a | a b | a b', 'a a | a b', '[CLS] a | a b',
                              'a | a b:2', 'cls: a | a b')
    def test_what_is_no_template(self, framing):
        message = f'data.framing={re.escape(repr(framing))} is no template; it takes .bert., .roberta.'
        with self.assertRaisesRegex(ValueError, message) as caught:
            parse(framing)
        self.assertNotIn('\n', str(caught.exception))

    @parameterized.parameters(('roberta', 'byte_level', {'mask': '<mask>'}, 'cls'), ('bert', 'unigram', {}, 'cls'),
                              ('t5', 'byte_level', {'begin': '<s>'}, 'end'))
    def test_roles_that_a_tokenizer_lacks(self, framing, kind, stated, role):
        tokenizer = dataclasses.replace(self.tokenizer(kind), stated=tuple(stated.items()))
        message = f"data.framing='{framing}' needs a token with the role '{role}', and data.tokenizer states none"
        with self.assertRaisesRegex(ValueError, message) as caught:
            Frame.of(framing, tokenizer)
        self.assertNotIn('\n', str(caught.exception))
        self.assertIn(role, lacking(framing, tokenizer))

    @parameterized.parameters(*TEMPLATES)
    def test_long_texts_lose_their_ends_the_longer_one_first(self, framing):
        frame = Frame.of(framing, IdTokenizer(50, Roles(begin=1, end=2)))
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
        frame = Frame.of('bert', IdTokenizer(50, Roles(begin=1, end=2)))
        self.assertEqual((frame.room(3), frame.room(5, pair=True)), (1, 2))
        for length, second in ((2, None), (4, [8])):
            with self.assertRaisesRegex(ValueError, f'data.length={length} has no room for .*; it must be {length + 1} or'):
                frame.fitted([7], second, length)

    def test_rows(self):
        frame = Frame.of('bert', IdTokenizer(50, Roles(begin=1, end=2)))
        batch = rows([frame.framed([7]), frame.framed([7], [8, 9])], 7)
        expected = {
            'inputs': [[1, 7, 2, 0, 0, 0, 0], [1, 7, 2, 8, 9, 2, 0]],
            'segments': [[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]],
            'positions': [[0, 1, 2, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 0]],
            'types': [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 0]],
        }
        self.assertEqual({name: array.tolist() for name, array in batch.items()}, expected)
        self.assertEqual({array.dtype for array in batch.values()}, {np.dtype(np.int32)})

    def test_a_tokenizer_whose_texts_are_framed(self):
        inner = IdTokenizer(50, Roles(end=9))
        framed = Framed(inner, (4, 5), 6)
        self.assertEqual([framed.encode('7 8').tolist(), framed.encode_many(['7', ''])[1].tolist()], [[4, 5, 7, 8], [4, 5]])
        self.assertEqual((framed.end, framed.vocab, framed.decode([4, 5, 7, 8, 6])), (6, 50, ' 7 8'))
        self.assertLen({one.fingerprint for one in (inner, framed, Framed(inner, (4,), 6), Framed(inner, (4, 5), 7))}, 4)


if __name__ == '__main__':
    absltest.main()
