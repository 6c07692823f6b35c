"""Our tokenizers as a tokenizer.json: the same ids for any text."""

import dataclasses
import pathlib
import random
import unicodedata

from absl.testing import absltest, parameterized

from data.seq2seq import pairs
from data.tokenizers.plain import IdTokenizer
from data.tokenizers.specs import Byte, Char, SentencePiece, Word
from data.tokenizers.written import as_json, prepared

README = (pathlib.Path(__file__).parents[3] / 'README.md').read_text()
ODD = ('', 'a', '\n', '\n\n a\n', '  two  spaces ', '\u2581x \u2581', '日本語 text 🙂', 'a\tb\r\nc\x0bd\x1ce\x85f\xa0g\u2028h',
       '\x00z', 'e\u0301', 'aaaaaaaa', '111222 ٣٤', 'x' * 5000)


class WrittenTest(parameterized.TestCase):

    @parameterized.parameters(
        Byte(), Byte(special=('cls', 'mask')), Char(), Word(), Word(vocab=200), SentencePiece(vocab=600),
        SentencePiece(vocab=500, kind='unigram'))
    def test_has_the_same_ids_and_roles(self, spec):
        draw = random.Random(0)
        drawn = [''.join(draw.choice('abcdeé \n\t1▁🙂日"|') for _ in range(draw.randint(1, 60))) for _ in range(300)]
        texts = [*ODD, *drawn, *README.replace('[CLS]', '').split('\n')]
        own = spec.learn([README])
        made = as_json(own)
        self.assertEqual((made.vocab, made.roles), (own.vocab, own.roles))
        for text, wanted, found in zip(texts, own.encode_many(texts), made.encode_many(texts)):
            self._assert_same(found, wanted, text, own)
            if 'unknown' not in own.roles.named() or own.roles.unknown not in wanted:
                self.assertEqual(made.decode(wanted).split(), own.decode(wanted).split())

    @parameterized.product(kind=('bpe', 'unigram'), without=('', '<>', '<', '>', '0_k'))
    def test_signs_of_tokens_in_a_text_are_text(self, kind, without):
        """Whatever their characters are in the vocabulary."""
        draw, text = random.Random(0), README + '<a> </a> </s <un' * 99
        own = SentencePiece(vocab=640, kind=kind, special=('begin', 'pad'), sentinels=5).learn([
            ''.join(sign for sign in text if sign not in without)])
        made = dataclasses.replace(as_json(own), split=True)
        signs = [*'<>/s0x41unk \n\0\t', '</s>', '<s>', '<unk>', '<pad>', '<0x41>', '<0x3C>', '/s>', '<extra_id_', 'the ', '▁']
        texts = [''.join(draw.choices(signs, k=draw.randint(1, 20))) for _ in range(1000)]
        for text, wanted, found in zip(texts, own.encode_many(texts), made.encode_many(texts)):
            self._assert_same(found, wanted, text, own)

    def test_texts_with_spaces_and_line_ends_come_back(self):
        for spec in (Byte(), Char(), SentencePiece(vocab=600)):
            made = as_json(spec.learn([README]))
            self.assertEqual(made.decode(made.encode(README)), README)

    @parameterized.product(how=('nfc', 'textbook', 'raw'), spec=(
        Word(vocab=300), SentencePiece(vocab=600), SentencePiece(vocab=500, kind='unigram', special=('mask',), sentinels=3)))
    def test_prepares_texts_as_pairs_of_sentences_are(self, how, spec):
        """Also capital sigmas, which have another small form at the end of a word, and characters of all planes."""
        draw, own = random.Random(1), spec.learn([README])
        known = [chr(point) for point in range(0x110000) if unicodedata.category(chr(point))[0] not in 'CM']
        marks = 'aE\u0301\u0327Σς\u2019 .,!?\t\n\x1c\x85\xa0İß<>'
        drawn = [''.join(draw.choice(draw.choice((marks, marks, known))) for _ in range(draw.randint(1, 20)))
                 for _ in range(2000)]
        made = prepared(as_json(own), pairs.normalizers(how))
        texts = [*ODD, 'Was für  ÄRGER, ΟΔΟΣ Σ.', 'a <mask>  b <extra_id_1>.', *drawn]
        for text, found in zip(texts, made.encode_many(texts)):
            self._assert_same(found, own.encode(pairs.prepare(text, how)), text, own)

    def test_bare_ids_have_none(self):
        self.assertIsNone(as_json(IdTokenizer(9)))

    def _assert_same(self, found, wanted, text, own):
        """The same ids. Those of a unigram model in another order that gives the text are as likely: rounding decides there."""
        if found.tolist() != wanted.tolist() and getattr(own, 'kind', '') == 'unigram':
            self.assertEqual((sorted(found.tolist()), own.decode(found)), (sorted(wanted.tolist()), own.decode(wanted)), text)
        else:
            self.assertEqual(found.tolist(), wanted.tolist(), text)


if __name__ == '__main__':
    absltest.main()
