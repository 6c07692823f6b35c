"""Where words begin and sentences end, whatever the tokenizer."""

import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.vocabulary import Vocabulary
from data.tokenizers import unknown
from data.tokenizers.specs import Byte, Char, Ids, SentencePiece, Word, WordPiece
from tests.data import tiny_tokenizers

TEXT = 'The cat sat. "It ran!" He said (so.) 3.5 is a number\nand this is not one. Why? Yes'  # 7 sentences
WORDS = ['The', ' cat', ' sat.', ' "It', ' ran!"', ' He', ' said', ' (so.)', ' 3.5', ' is', ' a', ' number', '\n', 'and',
         ' this', ' is', ' not', ' one.', ' Why?', ' Yes']
SENTENCES = ['The cat sat.', ' "It ran!"', ' He said (so.)', ' 3.5 is a number\n', 'and this is not one.', ' Why?', ' Yes']
LINES = [TEXT, 'the cat sat on the mat and ran to it'] * 20


class VocabularyTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def made(self, kind):
        specs = {'byte': Byte(special=('mask',)), 'char': Char(), 'sentence': SentencePiece(vocab=330), 'word': Word(),
                 'byte level': tiny_tokenizers.byte_level(self.folder, 'cat sat it is number')}
        return specs[kind].learn(LINES)

    def parts(self, tokenizer, ids, at):
        """The texts between some places of ids."""
        return [tokenizer.decode(part.tolist()) for part in np.split(ids, at)]

    @parameterized.parameters('byte', 'char', 'byte level')
    def test_words_and_sentences_of_a_text(self, kind):
        tokenizer = self.made(kind)
        ids, vocabulary = tokenizer.encode(TEXT), Vocabulary.of(tokenizer)
        starts = np.flatnonzero(vocabulary.word_starts(ids))
        if kind != 'byte level':  # a sign is a word of its own, with what stands behind it
            parts = self.parts(tokenizer, ids, starts[1:])
            self.assertEqual(''.join(parts), TEXT)
            self.assertContainsSubset([' cat', ' sat', '.', ' is', 'and', '\n'], parts)
        else:
            self.assertEqual(self.parts(tokenizer, ids, starts[1:]), WORDS)
        self.assertEqual(self.parts(tokenizer, ids, vocabulary.sentence_ends(ids)), SENTENCES)

    def test_word_pieces(self):
        tokenizer = tiny_tokenizers.word_piece(self.folder, 'the cat sat it is a number').learn()
        vocabulary = Vocabulary.of(tokenizer)
        ids = tokenizer.encode('The cats sat. "It is!" A 3.5 is')
        pieces = tokenizer._tokenizer.encode('The cats sat. "It is!" A 3.5 is').tokens
        starts = vocabulary.word_starts(ids)
        self.assertEqual(starts.tolist(), [not piece.startswith('##') for piece in pieces])
        ends = vocabulary.sentence_ends(ids)
        self.assertEqual([pieces[i - 2 : i] for i in ends], [['.', '"'], ['!', '"']])  # a quote behind a stop is taken to close
        self.assertNotIn('[UNK]', np.array(pieces)[np.isin(ids, vocabulary.ordinary)])
        self.assertEqual(vocabulary.special.sum(), 5)

    def test_letters_of_maltese_that_mean_spaces_to_others(self):
        """As Ġ and Ċ do where tokens are bytes."""
        tokenizer = tiny_tokenizers.word_piece(self.folder, 'Ċ mar il Belt Ġ').learn()
        ids, vocabulary = tokenizer.encode('Ċ mar il Belt. Ġ mar'), Vocabulary.of(tokenizer)
        self.assertLen(vocabulary.sentence_ends(ids), 1)
        self.assertFalse(vocabulary.ends[ids].any())

    def test_sentinels_are_special(self):
        made = Vocabulary.of(Byte(special=('mask',), sentinels=2).learn())
        self.assertEqual((made.mask, made.sentinels), (257, (259, 258)))
        self.assertEqual(np.flatnonzero(made.special).tolist(), [256, 257, 258, 259])

    def test_words_that_are_tokens(self):
        tokenizer = Word().learn(['the cat sat . <unk> it ran !'])
        vocabulary, ids = Vocabulary.of(tokenizer), tokenizer.encode('the cat sat . it ran !')
        self.assertTrue(vocabulary.word_starts(ids).all())
        self.assertEqual(vocabulary.sentence_ends(ids).tolist(), [4, 7])

    def test_pieces_of_sentence_piece(self):
        tokenizer = self.made('sentence')
        vocabulary, ids = Vocabulary.of(tokenizer), tokenizer.encode('the cat sat. "It ran!"')
        parts = self.parts(tokenizer, ids, np.flatnonzero(vocabulary.word_starts(ids))[1:])
        self.assertEqual([part.strip() for part in parts][:4], ['the', 'cat', 'sat', '.'])
        self.assertEqual(len(vocabulary.sentence_ends(ids)), 2)

    @parameterized.parameters('\u3002', '\uff1f', '\u061f', '\u0964', '\u2026', '."', '!)', '.\u201d', '?!')
    def test_signs_of_other_scripts_and_quotes(self, sign):
        text = f'ab{sign} cd'
        tokenizer = Char().learn([text])
        ends = Vocabulary.of(tokenizer).sentence_ends(tokenizer.encode(text))
        self.assertEqual(ends.tolist(), [2 + len(sign)])

    @parameterized.parameters((Char(), '3.5'), (Char(), '1.000.000'), (Word(), '3 @ . @ 5'), (Char(), 'a, b'), (Char(), '(a)'),
                              (Char(), '"a"'), (Char(), ''))
    def test_what_ends_no_sentence(self, spec, text):
        tokenizer = spec.learn([text])
        self.assertEqual(Vocabulary.of(tokenizer).sentence_ends(tokenizer.encode(text)).tolist(), [])

    def test_ids_do_not_say_where_words_begin(self):
        vocabulary = Vocabulary.of(Ids(vocab=9, mask=1, unknown=2).learn(), frozenset([4]))
        self.assertIsNone(vocabulary.begins)
        self.assertEqual((vocabulary.ordinary.tolist(), vocabulary.mask), ([0, 3, 5, 6, 7, 8], 1))


class UnknownTest(parameterized.TestCase):
    def test_unknown_words_of_a_text_are_one_token(self):
        tokenizer = WordPiece(vocab=26).learn(['the cat sat on the mat'] * 3)
        made, inner = unknown.reading(tokenizer), tokenizer.roles.unknown
        plain = tokenizer.encode('the cat sat').tolist()
        found = made.encode('the <unk> cat <unk><unk> sat <unk>').tolist()
        self.assertEqual([i for i in found if i != inner], plain)
        self.assertEqual(found.count(inner), 4)
        self.assertEqual([ids.tolist() for ids in made.encode_many(['', '<unk>', 'the'])], [[], [inner], plain[:1]])
        self.assertNotEqual(made.fingerprint, tokenizer.fingerprint)

    def test_no_space_is_left_before_it(self):
        tokenizer = SentencePiece(vocab=280).learn(['the cat sat on the mat'] * 9)
        found = unknown.reading(tokenizer).encode('the <unk> cat').tolist()
        self.assertEqual(found, [*tokenizer.encode('the'), 0, *tokenizer.encode(' cat')])

    def test_another_token_for_unknown_words_has_another_fingerprint(self):
        made = [unknown.reading(Ids(vocab=9, end=8, unknown=i).learn()) for i in (1, 2)]
        self.assertNotEqual(made[0].fingerprint, made[1].fingerprint)

    def test_a_tokenizer_without_such_a_token_stays(self):
        for tokenizer in Byte().learn(), Ids(vocab=9, end=8, unknown=8).learn():  # as GPT-2's: no text holds the end
            self.assertIs(unknown.reading(tokenizer), tokenizer)


if __name__ == '__main__':
    absltest.main()
