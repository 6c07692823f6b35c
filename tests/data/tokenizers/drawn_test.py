"""Segmentations drawn by BPE-dropout and by subword regularisation."""

import collections
import itertools
import math
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from absl.testing import absltest, parameterized

from data.tokenizers import lattice
from data.tokenizers.drawn import Chance, DrawnWays, DroppedMerges
from data.tokenizers.specs import SentencePiece
from tests.data.tokenizers.lattice_test import MODEL, TEXT

ROOT = pathlib.Path(__file__).parents[3]
BPE = SentencePiece(vocab=285).learn(TEXT)
ODD = 'the sea\n\n see \u2581deep\u2581\n中\u0301 seas\r\n  \n   the   sea 12'


def dropped(word, p, rng):
    """Provilkov et al. 2020, algorithm 1: each possible merge is left out with probability p, the best of the others made."""
    ranks, tokens = {sign: -score for sign, score, kind in BPE.pieces() if kind == 'normal'}, [*word]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(tokens)) if a + b in ranks]
        merges = [one for one in pairs if rng.random() >= p]
        if not merges:
            return tuple(tokens)
        _, i = min(merges)
        tokens[i:i + 2] = [tokens[i] + tokens[i + 1]]


def by_line(ids, model):
    """The ids of each line."""
    end, = model.encode('\n')
    return [(*group,) for is_end, group in itertools.groupby(ids.tolist(), lambda i: i == end) if not is_end]


class DrawnTest(parameterized.TestCase):
    def agree(self, found, chances, count):
        """Whether counts have these probabilities."""
        self.assertContainsSubset(found, chances)
        for way, p in chances.items():
            self.assertLess(abs(found[way] - count * p), 4.5 * math.sqrt(count * p * (1 - p)) + 1, way)

    @parameterized.parameters((BPE, DroppedMerges, 0.1), (BPE, DroppedMerges, 0.9), (MODEL, DrawnWays, 0.2),
                              (MODEL, DrawnWays, 1.0))
    def test_the_text_is_recovered_and_another_seed_draws_otherwise(self, model, drawing, strength):
        texts = [ODD, '', '\n', *TEXT]
        drawn = [drawing(model.model, seed, strength) for seed in ('0 0', '0 0', '0 1')]
        first, again, other = ([ids.tolist() for ids in one.encode_many(texts)] for one in drawn)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        for ids, text in zip(first + other, texts * 2):
            self.assertEqual(model.decode(ids), text)
        self.assertNotEqual(first, [ids.tolist() for ids in model.encode_many(texts)])
        self.assertEqual([ids.dtype for ids in drawn[0].encode_many(texts)], [np.int32] * len(texts))
        self.assertEqual((drawn[0].vocab, drawn[0].roles, drawn[0].fingerprint), (model.vocab, model.roles, ''))

    def test_without_dropout_the_usual_segmentation_and_with_all_of_it_characters(self):
        for text in (ODD, *TEXT[:3], '\n'.join(TEXT)):
            usual, none, every = (one.encode(text) for one in (
                BPE, DroppedMerges(BPE.model, '0', 0.0), DroppedMerges(BPE.model, '0', 1.0)))
            self.assertEqual(none.tolist(), usual.tolist())
            signs = [BPE.piece(int(i)) for i in every]
            self.assertTrue(all(len(sign) == 1 or sign.startswith('<0x') for sign in signs))
            self.assertEqual(BPE.decode(every), text)

    def test_a_large_exponent_draws_the_likeliest(self):
        drawn = DrawnWays(MODEL.model, '0', 1000.0)
        for text in (*TEXT[:3], ODD):
            self.assertEqual(drawn.encode(text).tolist(), MODEL.encode(text).tolist())

    @parameterized.product(p=(0.1, 0.5), together=(True, False))
    def test_dropout_is_the_algorithm_of_the_paper(self, p, together):
        """Also where each copy of a word is drawn by itself."""
        word, count, rng, drawn = '\u2581sailors', 6000, np.random.default_rng(0), DroppedMerges(BPE.model, '0', p)
        wanted = collections.Counter(dropped(word, p, rng) for _ in range(count))
        if together:
            ways = by_line(drawn.encode('\n'.join([' sailors'] * count)), BPE)
        else:
            chance = Chance('1')
            ways = [ids for _ in range(count) for ids, _ in drawn.draw(word, 1, chance)]
        found = collections.Counter(tuple(BPE._processor.id_to_piece(int(i)) for i in way) for way in ways)
        self.assertEqual(sum(found.values()), count)
        self.assertGreater(len(found), 4)
        for way in {*wanted, *found}:
            share = (wanted[way] + found[way]) / (2 * count)
            self.assertLess(abs(wanted[way] - found[way]), 4.5 * math.sqrt(2 * count * share * (1 - share)) + 3, way)

    @parameterized.product(alpha=(0.2, 1.0), together=(True, False))
    def test_regularisation_has_the_distribution_of_the_lattice(self, alpha, together):
        text, count, drawn = ' seas', 8000, DrawnWays(MODEL.model, '0', alpha)
        known = lattice.of(MODEL, text, alpha)
        chances = {tuple(edge.id for edge in edges): math.exp(score - known.total) for score, edges in known.best(known.count)}
        if together:
            ways = by_line(drawn.encode('\n'.join([text] * count)), MODEL)
        else:
            chance = Chance('1')
            ways = [ids for _ in range(count) for ids, _ in drawn.draw('\u2581seas', 1, chance)]
        self.agree(collections.Counter(ways), chances, count)

    def test_copies_are_independent_of_their_place(self):
        """Words next to each other are alike as often as they are by chance."""
        drawn = DroppedMerges(BPE.model, '0', 0.5)
        ways = by_line(drawn.encode('\n'.join(['sailors'] * 6000)), BPE)
        shares = collections.Counter(ways)
        chance = sum((n / len(ways)) ** 2 for n in shares.values())
        alike = sum(one == two for one, two in itertools.pairwise(ways))
        self.assertLess(abs(alike - chance * len(ways)), 5 * math.sqrt(chance * len(ways)))

    def test_symbols_are_pieces_of_their_own(self):
        spec = SentencePiece(vocab=300, special=('mask',), sentinels=3, dropout=0.5)
        made = spec.learn(TEXT)
        text = 'the<mask>sea <extra_id_0>\n<extra_id_2> seas'
        ids = spec.drawn(made, '0').encode(text).tolist()
        self.assertContainsSubset([made.roles.mask, made.sentinels[0], made.sentinels[2]], ids)
        self.assertEqual(made.decode(ids), text)

    def test_a_model_of_texts_without_spaces(self):
        lines = [''.join(np.random.default_rng(i).choice([*'abcde'], 30)) for i in range(40)]
        for kind, drawing in (('bpe', DroppedMerges), ('unigram', DrawnWays)):
            model = SentencePiece(vocab=275, kind=kind).learn(lines)
            for text in (lines[0], 'ab cd\n ', ''):
                usual, drawn = model.encode(text), drawing(model.model, '0', 0.5).encode(text)
                self.assertEqual(model.decode(drawn), model.decode(usual))

    def test_the_same_in_another_process(self):
        code = ('from tests.data.tokenizers.drawn_test import *\n'
                'for one in DroppedMerges(BPE.model, "3", 0.3), DrawnWays(MODEL.model, "3", 0.3):\n'
                '    print(one.encode("\\n".join(TEXT)).tolist())')
        found = {subprocess.run([sys.executable, '-c', code], cwd=ROOT, env=os.environ | {'PYTHONHASHSEED': seed},
                                capture_output=True, text=True, check=True).stdout for seed in '12'}
        self.assertLen(found, 1)
        self.assertGreater(len(found.pop()), 1000)

    @parameterized.parameters('words', 'one long word')
    def test_takes_seconds_a_megabyte(self, kind):
        rng = np.random.default_rng(0)
        signs = [*'theandsilorbup']
        text = ''.join(rng.choice(signs + [' '] * 3, 300_000)) if kind == 'words' else ''.join(rng.choice(signs, 100_000))
        for drawn in (DroppedMerges(BPE.model, '0', 0.1), DrawnWays(MODEL.model, '0', 0.2)):
            before = time.process_time()
            self.assertEqual(drawn.decode(drawn.encode(text)), text)
            self.assertLess(time.process_time() - before, 10)  # 1 s on a fast machine

    @parameterized.parameters(
        (dict(dropout=1.1), 'dropout is a probability'), (dict(dropout=-0.1), 'dropout is a probability'),
        (dict(dropout=float('nan')), 'dropout is a probability'), (dict(dropout=0.1, kind='unigram'), "for kind='bpe' alone"),
        (dict(alpha=0.1), "for kind='unigram' alone"), (dict(alpha=-1.0, kind='unigram'), 'alpha is a number'),
        (dict(alpha=float('inf'), kind='unigram'), 'alpha is a number'))
    def test_fields_that_do_not_fit(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            SentencePiece(**fields)

    def test_draws_are_no_part_of_what_is_learnt(self):
        spec = SentencePiece(vocab=285, dropout=0.1)
        self.assertEqual(spec.learn(TEXT), BPE)
        self.assertTrue(spec.names(BPE))
        self.assertEqual((spec.draws, spec.plain), (True, SentencePiece(vocab=285)))
        self.assertFalse(SentencePiece().draws)
        self.assertEqual(spec.drawn(BPE, '1'), DroppedMerges(BPE.model, '1', 0.1))
        ways = SentencePiece(vocab=285, kind='unigram', alpha=0.2).drawn(MODEL, '1')
        self.assertEqual(ways, DrawnWays(MODEL.model, '1', 0.2))


if __name__ == '__main__':
    absltest.main()
