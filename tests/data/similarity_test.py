"""The table of similarities: its scores are sacrebleu's, its parts share no sentence, and all of the scale occurs."""

import contextlib
import io

import numpy as np
from absl.testing import absltest
from sacrebleu.metrics import CHRF

from data import similarity
from data.text.labelled import Labelled
from data.text.targets import Number
from data.tokenizers.specs import Byte

DRAW = np.random.default_rng(0)
WORDS = ['le', 'chat', 'chien', 'dort', 'mange', 'une', 'pomme', 'rouge', 'petit', 'grand', 'maison', 'voit']
PAIRS = {f'sentence {i}': ' '.join(DRAW.choice(WORDS, size=DRAW.integers(2, 6))) + f' {i % 7}' for i in range(900)}


class SimilarityTest(absltest.TestCase):
    def made(self, name='out', **more):
        path = self.folder / 'pairs.tsv'
        path.write_text(''.join(f'{one}\t{two}\n' for one, two in PAIRS.items()) + 'Sentence 3!\tencore\n')
        with contextlib.redirect_stdout(io.StringIO()) as out:
            flags = [f'--{flag}={value}' for flag, value in ({'count': 400} | more).items()]
            similarity.main([str(path), f'--out={self.folder / name}', *flags])
        return self.folder / name, out.getvalue()

    def test_the_table(self):
        folder, said = self.made()
        parts = {name: [line.split('\t') for line in (folder / f'{name}.tsv').read_text().splitlines()[1:]]
                 for name in similarity.PARTS}
        self.assertIn(f'{len(parts["train"]):,} pairs in train.tsv, {len(parts["valid"]):,} pairs in valid.tsv', said)
        self.assertBetween(len(parts['train']), 300, 360)
        scores = []
        for one, two, score in parts['train']:
            a, b = PAIRS[one], PAIRS[two]
            wanted = np.mean([CHRF().sentence_score(a, [b]).score, CHRF().sentence_score(b, [a]).score]) / 100
            self.assertAlmostEqual(float(score), wanted, places=4)
            scores.append(wanted)
        texts = [*PAIRS.values()]
        usual = [CHRF().sentence_score(*x).score / 100 for x in zip(texts[:300], ([text] for text in texts[300:]))]
        self.assertGreater(np.std(scores), 1.3 * np.std(usual))  # of random pairs
        self.assertLess(np.histogram(scores, 10, (0, 1))[0].max(), 0.3 * len(scores))
        sides = [{text for row in rows for text in row[:2]} for rows in parts.values()]
        self.assertFalse(sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
        self.assertLen({frozenset(row[:2]) for row in parts['train']}, len(parts['train']))
        self.assertNotIn('Sentence 3!', set.union(*sides))  # the same but for case and punctuation
        opened = Labelled(path=str(folder), train='train', valid='valid', test='test', target=Number(), tokenizer=Byte(),
                          length=64, framing='plain').open(None)
        self.assertIn("text from 'sentence1' and 'sentence2', label from 'score'", opened.describe())

    def test_the_seed_decides(self):
        first, again, other = (self.made(name, seed=seed)[0] for name, seed in (('a', 1), ('b', 1), ('c', 2)))
        text = lambda folder: (folder / 'train.tsv').read_text()
        self.assertEqual(text(first), text(again))
        self.assertNotEqual(text(first), text(other))

    def test_bad_input(self):
        path = self.folder / 'few.tsv'
        path.write_text('one\tun\ntwo\tdeux\n')
        with self.assertRaisesRegex(ValueError, 'few.tsv has 2 different pairs, too few for a table of similarities'):
            similarity.write(str(path), self.folder / 'few')
        self.assertFalse((self.folder / 'few').exists())
        with self.assertRaisesRegex(ValueError, '--count=3 is too few pairs; give 100 or more'):
            self.made(count=3)
        self.made()
        with self.assertRaisesRegex(ValueError, 'train.tsv is there already; give --out another folder'):
            self.made()


if __name__ == '__main__':
    absltest.main()
