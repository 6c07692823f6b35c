import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from unittest import mock

import hypothesis
import numpy as np
import tokenizers as library
from absl.testing import absltest, parameterized
from hypothesis import strategies

from data.tokenizers import specs
from data.tokenizers import tokenizer as tokenizers
from data.tokenizers.roles import Roles
from training.config import resolve

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


SPECS = {'Byte': specs.Byte(), 'Char': specs.Char(), 'Word': specs.Word(), 'SentencePiece': specs.SentencePiece(vocab=360),
         'Unigram': specs.SentencePiece(vocab=300, kind='unigram'), 'WordPiece': specs.WordPiece(vocab=90)}


@functools.cache
def learnt(name):
    return SPECS[name].learn(CORPUS)


@functools.cache
def byte_level():
    """GPT-2's kind of tokenizer.json, learnt here by the library that defines the format."""
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer, made.decoder = library.pre_tokenizers.ByteLevel(add_prefix_space=False), library.decoders.ByteLevel()
    made.train_from_iterator(CORPUS, library.trainers.BpeTrainer(
        vocab_size=400, special_tokens=['[CLS]', '<|endoftext|>'], show_progress=False,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet()))
    made.post_processor = library.processors.TemplateProcessing('[CLS] $A', special_tokens=[('[CLS]', 0)])
    made.enable_truncation(4)
    return made


class RoundTripTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'SentencePiece', 'Unigram')
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

    @parameterized.parameters('Byte', 'Char', 'Word', 'SentencePiece', 'Unigram', 'WordPiece')
    def test_many_is_one_by_one(self, name):
        tokenizer, texts = learnt(name), ['', 'left \u2581 right', *CORPUS[:3]]
        many = tokenizer.encode_many(texts)
        self.assertEqual([ids.tolist() for ids in many], [tokenizer.encode(text).tolist() for text in texts])

    @parameterized.parameters('Byte', 'Char', 'SentencePiece', 'WordPiece')
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
        self.assertEqual(tokenizers.ByteTokenizer().encode('aé').tolist(), [97, 195, 169])
        tokenizer = specs.Char().learn(['ba', 'bd'])
        self.assertEqual((tokenizer.vocab, tokenizer.end, tokenizer.encode('abcd').tolist()), (5, 1, [2, 3, 0, 4]))
        self.assertEqual(learnt('SentencePiece').vocab, 360)

    def test_pieces(self):
        tokenizer = learnt('SentencePiece')
        pieces = [tokenizer.decode([i]) for i in tokenizer.encode('        return 42\n\n')]
        self.assertEqual((pieces[0].strip(), pieces[-2:]), ('', ['\n', '\n']))
        self.assertGreater(len(pieces[0]), 1)  # a run of spaces is a piece
        self.assertIn('4', pieces)  # digits stand alone

    @parameterized.parameters('Byte', 'Char', 'Word', 'SentencePiece', 'Unigram', 'WordPiece')
    def test_same_text_same_bits(self, name):
        again = SPECS[name].learn(iter(CORPUS))
        self.assertEqual(again, learnt(name))
        self.assertEqual(again.fingerprint, learnt(name).fingerprint)
        if name != 'Byte':
            smaller = {'vocab': SPECS[name].vocab - 1} if getattr(SPECS[name], 'vocab', 0) else {}
            other = dataclasses.replace(SPECS[name], **smaller).learn(CORPUS + ['~'])
            self.assertNotEqual(other.fingerprint, again.fingerprint)

    @parameterized.parameters('SentencePiece', 'Unigram')
    def test_the_same_bits_on_any_machine(self, name):
        for count in (1, 16):
            with mock.patch('os.cpu_count', return_value=count):
                self.assertEqual(SPECS[name].learn(CORPUS).fingerprint, learnt(name).fingerprint)

    def test_sample_is_even_and_bounded(self):
        lines = [f'{i:07d}' * 10 for i in range(200_000)]  # 14 MB
        kept = specs._sample(lines)
        self.assertBetween(sum(map(len, kept)), 3e6, 4e6)
        numbers = np.array([int(line[:7]) for line in kept])
        counts = np.histogram(numbers, bins=10, range=(0, 200_000))[0]
        self.assertLess(counts.max() / counts.min(), 1.1)
        self.assertAlmostEqual(np.mean(numbers % 2), 0.5, delta=0.02)  # neighbours alternate in line-aligned files
        self.assertEqual(specs._sample(lines[:10]), lines[:10])

    def test_vocabulary_too_large_names_the_largest(self):
        with self.assertRaisesRegex(ValueError, r'vocab=9999.*at most vocab=(\d+)') as caught:
            specs.SentencePiece(vocab=9999).learn(['some words'] * 9)
        largest = int(re.findall(r'vocab=(\d+)', str(caught.exception))[-1])
        self.assertEqual(specs.SentencePiece(vocab=largest).learn(['some words'] * 9).vocab, largest)

    def test_vocabulary_too_small(self):
        with self.assertRaisesRegex(ValueError, 'its characters and the 256 bytes.*use a larger vocab'):
            specs.SentencePiece(vocab=261).learn(CORPUS)
        self.assertEqual(specs.SentencePiece(vocab=260).learn(['a']).vocab, 260)
        for vocab in (-5, 0, 259):
            with self.assertRaisesRegex(ValueError, rf'vocab={vocab}\).*make 260; set vocab to some hundreds'):
                specs.SentencePiece(vocab=vocab)

    @parameterized.parameters('bpe', 'unigram')
    def test_a_text_of_a_few_bytes_is_called_short_before_a_vocabulary_is_advised(self, kind):
        with self.assertRaisesRegex(ValueError, 'training part: it has 3 characters, too few to train on; give it more text.$'):
            specs.SentencePiece(vocab=4000, kind=kind).learn(['a', 'bc'])
        with self.assertRaisesRegex(ValueError, 'training part: this text supports at most vocab=2'):
            specs.SentencePiece(vocab=4000, kind=kind).learn(['the cat sat. ' * 40])

    def test_no_text(self):
        with self.assertRaisesRegex(ValueError, 'cannot be learnt.*nothing but line ends'):
            specs.SentencePiece(vocab=300).learn(['\n\n'])

    @parameterized.parameters(
        ('\r\n' * 300, 'line ends'), ('\0\n' * 300, 'line ends and NUL characters'),
        ('a line with \u2585 in it\n' * 9, r'line ends and lines with U\+2585'),
        ('\r\n' * 300 + 'a\u2585b\n', r'line ends and lines with U\+2585'),
        ('\0\n' * 300 + 'a\u2585b\n', r'line ends and NUL characters and lines with U\+2585'))
    def test_lines_that_teach_nothing_are_called_what_they_are(self, text, what):
        message = f'training part: it holds nothing but {what}, which SentencePiece leaves out; give it more text.$'
        for kind in ('bpe', 'unigram'):
            with self.assertRaisesRegex(ValueError, message):
                specs.SentencePiece(vocab=300, kind=kind).learn([text])

    def test_a_line_that_is_too_long(self):
        with (mock.patch.object(specs, '_LONGEST', 1 << 20),
              self.assertRaisesRegex(ValueError, 'it holds a line of more than 1 MB, and SentencePiece .*; break it into')):
            specs.SentencePiece(vocab=300).learn(['a b ' * (1 << 18) + 'a\n'])

    @parameterized.parameters(
        'Byte()', "Byte(special=('cls', 'mask'))", 'Char()', 'Word(least=2)', 'SentencePiece(vocab=300)',
        "SentencePiece(vocab=300, kind='unigram')", 'WordPiece(vocab=90, lower=False)', 'WordPiece(vocab=90, sentinels=3)',
        "SentencePiece(vocab=300, special=('mask', 'pad'), sentinels=9)", 'Byte(sentinels=2)',
        "Json(path='tokenizer.json', end='</s>')", "Json(vocab=9, begin='<s>', cls='<s>', mask='<m>')",
        'Ids(vocab=12, end=3)', 'Ids(vocab=12, begin=1, separator=3)')
    def test_a_config_names_it_by_an_expression(self, expression):
        spec = resolve.parse(expression, specs.TokenizerSpec, 'tokenizer')
        self.assertEqual(repr(spec), expression)
        self.assertEqual(resolve.describe('data.text.documents:Text', tokenizer=spec).tokenizer, expression)

    def test_what_an_expression_leaves_out(self):
        parse = lambda text: resolve.parse(text, specs.TokenizerSpec, 'tokenizer')
        self.assertEqual((parse('SentencePiece()').vocab, repr(parse('SentencePiece()'))), (4096, 'SentencePiece()'))
        self.assertEqual(resolve.describe('data.text.documents:Text').tokenizer, 'SentencePiece()')
        with self.assertRaisesRegex(ValueError, "tokenizer is 'WordPieces.*there is no 'WordPieces'; did you mean 'WordPiece'"):
            parse('WordPieces()')


class AddedTest(parameterized.TestCase):
    """Tokens that no text teaches: roles and sentinels."""

    SPECS = {'SentencePiece': specs.SentencePiece(vocab=310, special=('begin', 'pad', 'mask'), sentinels=3),
             'WordPiece': specs.WordPiece(vocab=90, sentinels=3), 'Byte': specs.Byte(special=('mask',), sentinels=3)}

    @parameterized.parameters(*SPECS)
    def test_sentinels_are_the_last_ids_in_descending_order(self, kind):
        made = self.SPECS[kind].learn(CORPUS)
        last = made.vocab - 1
        self.assertEqual(made.sentinels, (last, last - 1, last - 2))
        self.assertEqual([made.piece(i) for i in made.sentinels], ['<extra_id_0>', '<extra_id_1>', '<extra_id_2>'])
        self.assertGreaterEqual(made.roles.mask, 0)
        made.save(self.folder)
        self.assertEqual(specs.load(self.folder, self.SPECS[kind]), made)
        fewer = dataclasses.replace(self.SPECS[kind], sentinels=2)
        with self.assertRaisesRegex(ValueError, 'sentinels=3.* ids; set data.tokenizer to that'):
            specs.load(self.folder, fewer)

    def test_a_text_has_them_by_name_but_not_the_tokens_of_rows(self):
        made = self.SPECS['SentencePiece'].learn(CORPUS)
        mask, pad = made.roles.mask, made.roles.pad
        ids = made.encode('the <extra_id_1> dog<mask><pad>')
        self.assertEqual([i for i in ids if i in (*made.sentinels, mask, pad)], [made.sentinels[1], mask])
        self.assertEqual(made.decode(ids), 'the <extra_id_1> dog<mask><pad>')
        self.assertEqual(made.piece(made.roles.begin), '<s>')

    def test_the_others_are_learnt_as_without_them(self):
        plain = specs.SentencePiece(vocab=304).learn(CORPUS)
        made = self.SPECS['SentencePiece'].learn(CORPUS)
        self.assertEqual(made.pieces()[:304], plain.pieces())
        self.assertEqual(made.kind, 'bpe')

    @parameterized.parameters(
        (lambda: specs.SentencePiece(special=('cls',)), 'special names some of begin, pad, mask'),
        (lambda: specs.SentencePiece(vocab=300, sentinels=50), '53 special pieces and one character make 310; set vocab to'),
        (lambda: specs.WordPiece(vocab=10, sentinels=5), '10 special tokens and one character make 11; use a larger'),
        (lambda: specs.Byte(sentinels=-1), 'sentinels is a count of 0 or more'),
        (lambda: specs.SentencePiece(vocab=9999, sentinels=7).learn(CORPUS), r'at most vocab=\d+'))
    def test_refuses(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


class WordTest(parameterized.TestCase):
    # As the sets are written: a space before each word and line end, and an empty line in WikiText.
    TEXT = ' mr. <unk> is chairman \n \n N years is old \n'

    def test_conventions_of_penn_treebank(self):
        tokenizer = specs.Word().learn([self.TEXT])
        self.assertEqual(tokenizer.words, ('is', 'N', 'chairman', 'mr.', 'old', 'years'))  # by frequency, then by name
        self.assertEqual((tokenizer.vocab, tokenizer.end), (8, 1))
        ids = tokenizer.encode(self.TEXT)
        self.assertEqual(ids.tolist(), [5, 0, 2, 4, 1, 1, 3, 7, 2, 6, 1])
        self.assertEqual(ids.dtype, np.int32)
        self.assertEqual(tokenizer.decode(ids), self.TEXT)
        self.assertEqual(tokenizer.encode('is\tnew\r\nold').tolist(), [2, 0, 1, 6])

    def test_most_frequent_words(self):
        tokenizer = specs.Word(vocab=4).learn([self.TEXT])
        self.assertEqual(tokenizer.words, ('is', 'N'))
        self.assertEqual(tokenizer.encode('N old is').tolist(), [3, 0, 2])

    def test_least_count(self):
        text = 'a a a b b c\nb <unk> <unk>'
        self.assertEqual(specs.Word(least=2).learn([text]).words, ('a', 'b'))
        self.assertEqual(specs.Word(least=2, vocab=3).learn([text]).words, ('a',))
        with self.assertRaisesRegex(ValueError, 'has no words that it uses 4 times or more; lower least'):
            specs.Word(least=4).learn([text])
        with self.assertRaisesRegex(ValueError, 'it has 2 words that it uses 2 times or more, so vocab is at most 4'):
            specs.Word(least=2, vocab=5).learn([text])
        with self.assertRaisesRegex(ValueError, r'^Word\(least=0\) has no meaning: least is a count of 1 or more'):
            specs.Word(least=0)

    def test_first_bytes(self):
        tokenizer = specs.Word().learn([self.TEXT])
        for text, covered in ((' mr. x', ' mr.'), ('mr.', 'mr.'), (' \n a', ' \n'), ('é b', 'é')):
            self.assertEqual(tokenizer.first_bytes(text), len(covered.encode()))

    def test_the_names_of_its_own_tokens_in_a_text_are_words_it_does_not_know(self):
        tokenizer = specs.Word().learn(['a <eos> b <unk>\n'])
        self.assertEqual(tokenizer.vocab, 4)
        self.assertEqual(tokenizer.encode('a <eos> b\n<unk>').tolist(), [2, 0, 3, 1, 0])

    @parameterized.parameters((9, 'it has 6 words, so vocab is at most 8'), (2, '<unk>, <eos> and one word make 3'))
    def test_a_vocabulary_that_the_text_cannot_have(self, vocab, message):
        with self.assertRaisesRegex(ValueError, message):
            specs.Word(vocab=vocab).learn([self.TEXT])


class VocabularyTest(parameterized.TestCase):
    @parameterized.parameters(
        specs.SentencePiece(vocab=5000), specs.SentencePiece(vocab=5000, kind='unigram'), specs.WordPiece(vocab=5000),
        specs.SentencePiece(vocab=5000, kind='unigram', special=('mask',), sentinels=7), specs.Word(vocab=5000))
    def test_the_largest_that_a_text_supports_can_be_learnt(self, spec):
        text = ['the cat sat on the mat\n', 'the dog ate it all\n'] * 4
        with self.assertRaises(ValueError) as raised:
            spec.learn(text)
        largest = int(re.search(r'(?:at most|vocab=)[a-z =]*(\d+)(?:;|, or)', str(raised.exception))[1])
        self.assertEqual(dataclasses.replace(spec, vocab=largest).learn(text).vocab, largest)
        with self.assertRaises(ValueError):
            dataclasses.replace(spec, vocab=largest + 1).learn(text)

    @parameterized.parameters(
        (specs.SentencePiece(vocab=5000, sentinels=3), "'SentencePiece(vocab={}, sentinels=3)'"),
        (specs.SentencePiece(vocab=5000, special=('begin',)), '"SentencePiece(vocab={}, special=(\'begin\',))"'),
        (specs.WordPiece(vocab=5000, lower=False, sentinels=3), "'WordPiece(vocab={}, lower=False, sentinels=3)'"))
    def test_the_flag_for_the_largest_that_a_text_supports(self, spec, wanted):
        with self.assertRaises(ValueError) as raised:
            spec.learn(['the cat sat on the mat\n', 'the dog ate it all\n'] * 4)
        said = str(raised.exception)
        self.assertStartsWith(said, f'{spec} cannot be learnt')
        most = re.search(r'at most vocab=(\d+)', said)[1]
        self.assertEndsWith(said, f'or take --config.data.tokenizer={wanted.format(most)}.')

    @parameterized.parameters(specs.Word(), specs.Word(vocab=9), specs.Word(least=2), specs.WordPiece(vocab=9))
    def test_a_text_without_words(self, spec):
        with self.assertRaisesRegex(ValueError, 'it holds no words; give it more text'):
            spec.learn([' \n', ''])


class WordPieceTest(parameterized.TestCase):
    def pieces(self, tokenizer):
        return [tokenizer.sign(i) for i in range(tokenizer.vocab)]

    def test_what_is_learnt(self):
        tokenizer = specs.WordPiece(vocab=12).learn(['cd Ab', 'CD', ' ab\nab'])  # ab is joined before cd
        self.assertEqual(self.pieces(tokenizer), ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '##b', '##d', *'abcd', 'ab'])
        self.assertEqual(tokenizer.encode('AB cdb x,[MASK]').tolist(), [11, 9, 6, 5, 1, 1, 4])
        self.assertEqual((tokenizer.end, tokenizer.decode([2, 11, 9, 6, 3, 0, 4])), (3, 'ab cd'))

    def test_with_and_without_capitals(self):
        cased = specs.WordPiece(vocab=15, lower=False).learn(['Ab cd ab Éé'])
        self.assertEqual(self.pieces(cased)[5:], ['##b', '##d', '##é', *'AabcdÉé'])
        small = specs.WordPiece(vocab=13).learn(['Ab cd ab Éé'])
        self.assertEqual(self.pieces(small)[5:], ['##b', '##d', '##e', *'abcde'])

    @parameterized.parameters('Adds 36 to é.', 'LEFT + right!', '  naïve\x07 wörld ', '你好 def_1 ' + 'a' * 101)
    def test_is_what_the_library_makes_of_the_vocabulary(self, text):
        for lower in (True, False):
            tokenizer = specs.WordPiece(90, lower).learn(CORPUS)
            theirs = library.BertWordPieceTokenizer({sign: i for i, sign in enumerate(self.pieces(tokenizer))}, lowercase=lower)
            ids = theirs.encode(text).ids
            self.assertEqual([2, *tokenizer.encode(text), 3], ids)
            self.assertEqual(library.Tokenizer.from_str(tokenizer.contents.decode()).encode(text).ids, ids)
            self.assertEqual(tokenizer.decode(ids), theirs.decode(ids))

    def test_the_same_bits_in_another_process(self):
        code = 'from data.tokenizers import specs; from tests.data.tokenizers.tokenizer_test import CORPUS; '
        code += "print(specs.WordPiece(vocab=90).learn(CORPUS).fingerprint)"
        for threads in ('1', '3'):
            changed = os.environ | {'RAYON_NUM_THREADS': threads, 'PYTHONPATH': os.pathsep.join(sys.path)}
            done = subprocess.run([sys.executable, '-c', code], env=changed, capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.strip(), learnt('WordPiece').fingerprint)

    def test_the_order_of_the_text_is_all_the_same(self):
        self.assertEqual(specs.WordPiece(vocab=90).learn(CORPUS[::-1]), learnt('WordPiece'))

    def test_rare_characters_are_unknown(self):
        common = [chr(0x4E00 + i) for i in range(999)]
        tokenizer = specs.WordPiece(vocab=1006).learn([' '.join(common * 2), 'ab 龥 龥 aa'])
        self.assertEqual(self.pieces(tokenizer)[5:], ['##a', 'a', *common])  # not b, which comes once
        self.assertEqual(tokenizer.encode('龥 ab').tolist(), [1, 1])

    def test_a_vocabulary_that_the_text_cannot_have(self):
        text = 'some words are longer'
        with self.assertRaisesRegex(ValueError, r'WordPiece\(vocab=9999\) cannot be learnt.*at most vocab=(\d+)') as caught:
            specs.WordPiece(vocab=9999).learn([text])
        largest = int(re.findall(r'vocab=(\d+)', str(caught.exception))[-1])
        tokenizer = specs.WordPiece(vocab=largest).learn([text])
        self.assertEqual((tokenizer.vocab, len(tokenizer.encode(text))), (largest, 4))
        with self.assertRaisesRegex(ValueError, 'its characters and the special tokens alone are 24; use a larger vocab'):
            specs.WordPiece(vocab=8).learn([text])
        with self.assertRaisesRegex(ValueError, 'it holds no words; give it more text'):
            specs.WordPiece(vocab=8).learn(['\n \n'])
        with self.assertRaisesRegex(ValueError, r'vocab=5\).*5 special tokens and one character make 6'):
            specs.WordPiece(vocab=5)

    def test_saved_it_is_a_tokenizer_json(self):
        learnt('WordPiece').save(self.folder)
        self.assertEqual(specs.load(self.folder, specs.Json()), learnt('WordPiece'))
        self.assertEqual(specs.load(self.folder, specs.WordPiece(vocab=90)), learnt('WordPiece'))
        byte_level().save(str(self.folder / 'tokenizer.json'))
        with self.assertRaisesRegex(ValueError, r'is not the tokenizer of .*Json\(\) with 400 ids;'):
            specs.load(self.folder, specs.WordPiece())


class KindTest(absltest.TestCase):
    def test_bpe_and_unigram(self):
        self.assertEqual([learnt(name).kind for name in ('SentencePiece', 'Unigram')], ['bpe', 'unigram'])
        self.assertEqual(learnt('Unigram').vocab, 300)
        self.assertNotEqual(learnt('SentencePiece').encode(CORPUS[0]).tolist(), learnt('Unigram').encode(CORPUS[0]).tolist())

    def test_another_kind(self):
        with self.assertRaisesRegex(ValueError, "kind is 'bpe' or 'unigram'"):
            specs.SentencePiece(kind='word')


class CharactersTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'SentencePiece', 'Unigram', 'WordPiece')
    def test_half_of_a_character_is_refused(self, name):
        encoders = [learnt(name).encode, *([learnt(name).offsets] if name == 'WordPiece' else [])]
        for encode in encoders:
            for text in ('a\udcff', '\u2581\udcff'):
                with self.assertRaisesRegex(ValueError, r"The text .* has '\\udcff', half of a character; expected UTF-8"):
                    encode(text)


class JsonTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder / 'gpt2.json'
        byte_level().save(str(self.path))
        self.spec = specs.Json(str(self.path))
        self.tokenizer = self.spec.learn()

    def test_is_what_the_library_does_without_special_tokens_and_truncation(self):
        text = CORPUS[3] + ' é 😀'
        ids = self.tokenizer.encode(text)
        whole = library.Tokenizer.from_file(str(self.path))
        whole.no_truncation()
        self.assertEqual(ids.tolist(), whole.encode(text, add_special_tokens=False).ids)
        self.assertGreater(len(ids), 4)
        self.assertEqual(self.tokenizer.decode([self.tokenizer.end, *ids]), text)
        self.assertEqual((self.tokenizer.vocab, self.tokenizer.end), (400, 1))
        self.assertEqual(self.tokenizer.first_bytes('é'), 2)

    def test_saved_and_loaded(self):
        self.path.rename(self.folder / 'elsewhere.json')  # a run has its own copy
        (self.folder / 'run').mkdir()
        self.tokenizer.save(self.folder / 'run')
        loaded = specs.load(self.folder / 'run', self.spec)
        self.assertEqual(loaded, self.tokenizer)
        self.assertEqual(loaded.encode('left').tolist(), self.tokenizer.encode('left').tolist())

    def test_another_file_than_the_saved_one(self):
        self.tokenizer.save(self.folder)
        self.assertEqual(specs.load(self.folder, self.spec), self.tokenizer)
        self.path.write_bytes(self.path.read_bytes() + b' ')
        with self.assertRaisesRegex(ValueError, r'is not the tokenizer of .*Json\(\) with 400 ids'):
            specs.load(self.folder, self.spec)

    def test_another_end(self):
        other = specs.Json(str(self.path), end='[CLS]').learn()
        self.assertEqual(other.end, 0)
        self.assertNotEqual(other.fingerprint, self.tokenizer.fingerprint)
        other.save(self.folder)
        self.assertEqual(specs.load(self.folder, specs.Json(end='[CLS]')).end, 0)
        for role in ('end', 'mask'):
            with self.assertRaisesRegex(ValueError, f"has no token '</x>' for {role}='</x>'; name one that it has"):
                specs.Json(str(self.path), **{role: '</x>'}).learn()

    def test_none_of_the_usual_ends(self):
        made = library.Tokenizer(library.models.WordLevel({'a': 0}, unk_token='a'))
        made.save(str(self.path))
        self.assertEqual((self.spec.learn().roles, self.spec.learn().end), (Roles(), -1))

    @parameterized.parameters(
        ('[PAD] [UNK] [CLS] [SEP] [MASK]', Roles(-1, -1, 1, 3, 4, 5, 2)),
        ('<s> <pad> </s> <unk> <mask>', Roles(1, 3, 2, 1, 3, 5, 4)),
        ('<pad> </s> <unk> <extra_id_0>', Roles(end=2, pad=1, unknown=3)), ('<|endoftext|>', Roles(begin=1, end=1, unknown=1)),
        ('<s> </s> <unk>', Roles(begin=1, end=2, unknown=3)), ('[CLS] [SEP]', Roles(cls=1, separator=2)), ('<x>', Roles()))
    def test_roles_by_usual_names(self, signs, roles):
        made = library.Tokenizer(library.models.WordLevel({'a': 0}, unk_token='a'))
        made.add_special_tokens(signs.split())
        made.save(str(self.path))
        self.assertEqual(self.spec.learn().roles, roles)
        stated = specs.Json(str(self.path), mask=signs.split()[0]).learn()
        self.assertEqual((stated.roles, stated.end), (Roles(mask=1), -1))  # what is not stated is not there

    def test_tokens_that_a_model_lacks_have_no_role(self):
        made = library.Tokenizer(library.models.WordLevel({'a': 0}, unk_token='a'))
        made.add_special_tokens(['[CLS]', '[SEP]', '[MASK]'])
        made.save(str(self.path))
        self.assertEqual(specs.Json(str(self.path), vocab=3).learn().roles, Roles(cls=1, separator=2))
        with self.assertRaisesRegex(ValueError, "has no token '.MASK.' for mask="):
            specs.Json(str(self.path), vocab=3, mask='[MASK]').learn()

    def test_a_special_end_goes_before_a_piece_of_that_name(self):
        made = library.Tokenizer(library.models.WordLevel({'<|endoftext|>': 0, '</s>': 1}, unk_token='</s>'))
        made.save(str(self.path))
        self.assertEqual(self.spec.learn().end, 0)
        made.add_special_tokens(['</s>'])
        made.save(str(self.path))
        self.assertEqual(self.spec.learn().end, 1)

    def test_no_file_or_another_one(self):
        for path in ('', 'nowhere.json', str(self.folder)):
            with self.assertRaisesRegex(FileNotFoundError, 'is no file; .* names a tokenizer.json'):
                specs.Json(path).learn()
        self.path.write_text('{"version": 3}')
        with self.assertRaisesRegex(ValueError, 'The tokenizer.json cannot be read'):
            self.spec.learn()


class ByteTest(parameterized.TestCase):
    def test_tokens_of_further_roles(self):
        made = specs.Byte(special=('cls', 'mask')).learn()
        self.assertEqual((made.vocab, made.roles), (259, Roles(end=256, cls=257, mask=258)))
        self.assertEqual([made.piece(i) for i in (255, 256, 257, 258)], ['<0xFF>', '<end>', '<cls>', '<mask>'])
        self.assertEqual(made.decode([257, 97, 258, 98, 256]), 'ab')
        self.assertNotEqual(made.fingerprint, tokenizers.ByteTokenizer().fingerprint)
        made.save(self.folder)
        self.assertEqual(specs.load(self.folder, specs.Byte(('cls', 'mask'))), made)
        with self.assertRaisesRegex(ValueError, r"with its parameters: Byte\(special=\('cls', 'mask'\)\) with 259 ids"):
            specs.load(self.folder, specs.Byte())

    @parameterized.parameters('end', 'bos', ('mask', 'mask'))
    def test_what_is_no_further_role(self, *special):
        with self.assertRaisesRegex(ValueError, 'special names some of begin, pad, cls, separator, mask, unknown, each once'):
            specs.Byte(special=special)


class SaveTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'Char', 'Word', 'SentencePiece', 'Unigram', 'WordPiece')
    def test_saved_and_loaded(self, name):
        learnt(name).save(self.folder)
        self.assertLen(list(self.folder.iterdir()), 1)
        loaded = specs.load(self.folder, SPECS[name])
        self.assertEqual(loaded, learnt(name))
        self.assertEqual(loaded.encode('left é').tolist(), learnt(name).encode('left é').tolist())

    @parameterized.parameters(
        ('Char', specs.Byte(), r'Char\(\) with .* ids;'),
        ('SentencePiece', specs.SentencePiece(vocab=400), r"SentencePiece\(vocab=360, kind='bpe'\) with 360 ids;"),
        ('SentencePiece', specs.SentencePiece(vocab=360, kind='unigram'), "kind='bpe'"),
        ('Unigram', specs.SentencePiece(vocab=300), "kind='unigram'"),
        ('Word', specs.Word(vocab=5), r'Word\(\) with .* ids;'),
        ('WordPiece', specs.WordPiece(vocab=91), r'WordPiece\(vocab=90, lower=True\) with 90 ids;'),
        ('WordPiece', specs.WordPiece(vocab=90, lower=False), r'WordPiece\(vocab=90, lower=True\) with'),
        ('WordPiece', specs.Word(), r'WordPiece\(vocab=90, lower=True\) with'),
        ('Word', specs.WordPiece(), r'Word\(\) with .* ids;'),
    )
    def test_another_one_is_asked_for(self, name, spec, message):
        learnt(name).save(self.folder)
        with self.assertRaisesRegex(ValueError, f"^data.part='.*' is not the tokenizer of .*{message}.*set data.part to that"):
            specs.load(self.folder, spec, 'data.part')

    def test_nothing_saved(self):
        self.assertIsNone(specs.load(self.folder, specs.Byte()))

    @parameterized.parameters('{', '[]', json.dumps({'tokenizer': 'Char'}))
    def test_damaged_description(self, contents):
        (self.folder / 'tokenizer.json').write_text(contents)
        with self.assertRaisesRegex(ValueError, r'tokenizer\.json is no saved'):
            specs.load(self.folder, specs.Char())

    def test_a_damaged_model_is_named(self):
        for contents, what in ((b'', 'is empty'), (b'x' * 50, 'is damaged')):
            (self.folder / 'tokenizer.model').write_bytes(contents)
            with self.assertRaisesRegex(ValueError, f'/tokenizer.model: The SentencePiece model {what}.*; restore it'):
                specs.load(self.folder, specs.SentencePiece(vocab=300))

    def test_damaged_model(self):
        (self.folder / 'tokenizer.model').write_bytes(b'nonsense')
        with self.assertRaisesRegex(ValueError, 'model is damaged'):
            specs.load(self.folder, specs.SentencePiece()).encode('x')


class PieceTest(parameterized.TestCase):
    @parameterized.parameters('Byte', 'Char', 'Word', 'SentencePiece', 'Unigram', 'WordPiece')
    def test_every_id_has_one(self, name):
        tokenizer = learnt(name)
        for number in range(tokenizer.vocab):
            self.assertTrue(tokenizer.piece(number))

    def test_what_they_are(self):
        self.assertEqual([tokenizers.ByteTokenizer().piece(i) for i in (97, 10, 0xE4, 256)], ['a', '\n', '<0xE4>', '<end>'])
        self.assertEqual([tokenizers.CharTokenizer('aé').piece(i) for i in range(4)], ['<unk>', '<end>', 'a', 'é'])
        self.assertEqual([tokenizers.WordTokenizer(('key',)).piece(i) for i in range(3)], ['<unk>', '<eos>', 'key'])
        for name in ('SentencePiece', 'Unigram'):
            tokenizer, text = learnt(name), 'def add_1(left):\n    return value'
            self.assertEqual(''.join(map(tokenizer.piece, tokenizer.encode(text).tolist())), text)
            self.assertEqual(tokenizer.piece(tokenizer.end), '</s>')

    def test_of_a_tokenizer_json(self):
        tokenizer, text = tokenizers.JsonTokenizer(byte_level().to_str().encode()), 'def add_1(left): value'
        self.assertEqual(''.join(map(tokenizer.piece, tokenizer.encode(text).tolist())), text)
        self.assertEqual(tokenizer.piece(tokenizer.end), '<|endoftext|>')


if __name__ == '__main__':
    absltest.main()
