import functools
import json

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies

from data import tokenizers

CORPUS = [
    f'def add_{i % 7}(left, right):\n    """Adds {i * 37} to é."""\n\tvalue = left + right\n        return value\n\n'
    for i in range(300)
]
TEXTS = strategies.lists(
    strategies.one_of(
        strategies.text(strategies.characters(exclude_categories=['Cs']), max_size=12),
        strategies.sampled_from([' ', '  ', '    ', '\n', '\t', '\r\n', '\0', '\u2581', '😀']),
        strategies.sampled_from(['</s>', '<unk>', '<0x41>', 'def ', 'value']),
    ),
    max_size=8,
).map(''.join)


@functools.cache
def learnt(name):
    return tokenizers.learn({'SentencePiece': 'SentencePiece(vocab=360)'}.get(name, f'{name}()'), CORPUS)


class RoundTripTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'SentencePiece')
    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.given(TEXTS)
    def test_any_text(self, name, text):
        tokenizer = learnt(name)
        ids = tokenizer.encode(text)
        self.assertEqual(tokenizer.decode(ids), text)
        self.assertEqual(ids.dtype, np.int32)
        self.assertTrue(all(0 <= i < tokenizer.vocab and i != tokenizer.end for i in ids))

    @hypothesis.settings(max_examples=100, deadline=None)
    @hypothesis.given(TEXTS)
    def test_characters(self, text):
        tokenizer = learnt('Char')
        known = set(''.join(CORPUS))
        self.assertEqual(tokenizer.decode(tokenizer.encode(text)), ''.join(c if c in known else '\ufffd' for c in text))

    @hypothesis.settings(max_examples=100, deadline=None)
    @hypothesis.given(TEXTS, TEXTS)
    def test_lines_are_encoded_alone(self, first, second):
        tokenizer = learnt('SentencePiece')
        whole = tokenizer.encode(f'{first}\n{second}').tolist()
        self.assertEqual(whole, tokenizer.encode(f'{first}\n').tolist() + tokenizer.encode(second).tolist())

    @parameterized.parameters('Byte', 'Char', 'SentencePiece')
    def test_many_is_one_by_one(self, name):
        tokenizer, texts = learnt(name), ['', 'left \u2581 right', *CORPUS[:3]]
        many = tokenizer.encode_many(texts)
        self.assertEqual([ids.tolist() for ids in many], [tokenizer.encode(text).tolist() for text in texts])

    @parameterized.parameters('Byte', 'Char', 'SentencePiece')
    def test_end_has_no_text(self, name):
        tokenizer = learnt(name)
        ids = tokenizer.encode('left')
        self.assertEqual(tokenizer.decode([tokenizer.end, *ids, tokenizer.end]), 'left')

    @parameterized.parameters('Byte', 'Char', 'SentencePiece')
    def test_first_bytes(self, name):
        tokenizer = learnt(name)
        for text in ('left + right', '    return', 'é', '\n\nx', '\tx', '9 9', '\u2581', '😀'):
            if name != 'Char' or text[0] in ''.join(CORPUS):
                first = tokenizer.encode(text)[:1]
                covered = text.encode()[: tokenizer.first_bytes(text)]
                self.assertIn(tokenizer.decode(first), (covered.decode(errors='replace'), '\ufffd'))
        self.assertEqual(tokenizer.first_bytes('é'), {'Byte': 1, 'Char': 2, 'SentencePiece': 2}[name])


class LearnTest(parameterized.TestCase):
    def test_ids(self):
        self.assertEqual(tokenizers.Byte().encode('aé').tolist(), [97, 195, 169])
        tokenizer = tokenizers.learn('Char()', ['ba', 'bd'])
        self.assertEqual((tokenizer.vocab, tokenizer.end, tokenizer.encode('abcd').tolist()), (5, 1, [2, 3, 0, 4]))
        self.assertEqual(learnt('SentencePiece').vocab, 360)

    def test_pieces(self):
        tokenizer = learnt('SentencePiece')
        pieces = [tokenizer.decode([i]) for i in tokenizer.encode('        return 42\n\n')]
        self.assertEqual((pieces[0].strip(), pieces[-2:]), ('', ['\n', '\n']))
        self.assertGreater(len(pieces[0]), 1)  # a run of spaces is a piece
        self.assertIn('4', pieces)  # digits stand alone

    @parameterized.parameters('Byte', 'Char', 'SentencePiece')
    def test_same_text_same_bits(self, name):
        again = tokenizers.learn({'SentencePiece': 'SentencePiece(vocab=360)'}.get(name, f'{name}()'), iter(CORPUS))
        self.assertEqual(again, learnt(name))
        self.assertEqual(again.fingerprint, learnt(name).fingerprint)
        if name != 'Byte':
            other = tokenizers.learn(
                {'SentencePiece': 'SentencePiece(vocab=350)'}.get(name, f'{name}()'), CORPUS + ['~']
            )
            self.assertNotEqual(other.fingerprint, again.fingerprint)

    def test_sample_is_even_and_bounded(self):
        lines = [f'{i:07d}' * 10 for i in range(200_000)]  # 14 MB
        kept = tokenizers._sample(lines)
        self.assertBetween(sum(map(len, kept)), 3e6, 4e6)
        numbers = np.array([int(line[:7]) for line in kept])
        counts = np.histogram(numbers, bins=10, range=(0, 200_000))[0]
        self.assertLess(counts.max() / counts.min(), 1.1)
        self.assertAlmostEqual(np.mean(numbers % 2), 0.5, delta=0.02)  # neighbours alternate in line-aligned files
        self.assertEqual(tokenizers._sample(lines[:10]), lines[:10])

    def test_vocabulary_too_large_names_the_largest(self):
        with self.assertRaisesRegex(ValueError, r'vocab=9999.*at most vocab=(\d+)') as caught:
            tokenizers.learn('SentencePiece(vocab=9999)', ['some words'])
        largest = str(caught.exception).split('=')[-1].rstrip('.')
        self.assertEqual(str(tokenizers.learn(f'SentencePiece(vocab={largest})', ['some words']).vocab), largest)

    def test_vocabulary_too_small(self):
        with self.assertRaisesRegex(ValueError, 'its characters and the 256 bytes.*use a larger vocab'):
            tokenizers.learn('SentencePiece(vocab=261)', CORPUS)
        self.assertEqual(tokenizers.learn('SentencePiece(vocab=260)', ['a']).vocab, 260)
        for vocab in (-5, 0, 259):
            with self.assertRaisesRegex(ValueError, rf'vocab={vocab}\).*make 260; use a larger vocab'):
                tokenizers.parse(f'SentencePiece(vocab={vocab})')

    def test_no_text(self):
        with self.assertRaisesRegex(ValueError, 'cannot be learnt.*nothing but line ends'):
            tokenizers.learn('SentencePiece(vocab=300)', ['\n\n'])

    def test_unknown(self):
        for expression in ('WordPiece()', 'SentencePiece(4096)', 'SentencePiece(size=3)'):
            with self.assertRaisesRegex(ValueError, r'data.tokenizer=.*SentencePiece\(vocab=4096\)'):
                tokenizers.learn(expression, CORPUS)


class SaveTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'Char', 'SentencePiece')
    def test_saved_and_loaded(self, name):
        learnt(name).save(self.folder)
        self.assertLen(list(self.folder.iterdir()), 1)
        loaded = tokenizers.load(self.folder)
        self.assertEqual(loaded, learnt(name))
        self.assertEqual(loaded.encode('left é').tolist(), learnt(name).encode('left é').tolist())

    def test_nothing_saved(self):
        self.assertIsNone(tokenizers.load(self.folder))

    @parameterized.parameters('{', '[]', json.dumps({'tokenizer': 'Char'}))
    def test_damaged_description(self, contents):
        (self.folder / 'tokenizer.json').write_text(contents)
        with self.assertRaisesRegex(ValueError, r'tokenizer\.json is no saved'):
            tokenizers.load(self.folder)

    def test_damaged_model(self):
        (self.folder / 'tokenizer.model').write_bytes(b'nonsense')
        with self.assertRaisesRegex(ValueError, 'model is damaged'):
            tokenizers.load(self.folder).encode('x')


if __name__ == '__main__':
    absltest.main()
