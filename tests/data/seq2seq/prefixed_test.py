import dataclasses
import itertools

import numpy as np
from absl.testing import absltest, parameterized

from data.seq2seq.parallel import Parallel
from data.seq2seq.prefixed import Prefixed
from data.tokenizers.specs import Byte, SentencePiece

RNG = np.random.default_rng(0)
PAIRS = [(''.join(RNG.choice([*'abcdef'], RNG.integers(1, 9))), ''.join(RNG.choice([*'uvwxyz'], RNG.integers(1, 9))))
         for _ in range(60)]
END = 256


class PrefixedTest(parameterized.TestCase):
    def opened(self, cls=Prefixed, **fields):
        path = self.folder / 'pairs.tsv'
        path.write_text(''.join(f'{a}\t{b}\n' for a, b in PAIRS))
        given = dict(source='table', path=str(path), tokenizer=Byte(), train='all', valid='', test='', source_length=12,
                     length=12, batch_size=4)
        return cls(**given | fields).open(None)

    @parameterized.parameters('first_fit', 'buckets', 'none')
    def test_rows_hold_the_pairs_of_an_encoder_and_a_decoder(self, packing):
        """The same pairs, in the same order, as those of data.seq2seq.parallel:Parallel, by loops."""
        opened, pairs = self.opened(packing=packing), self.opened(Parallel, packing=packing)
        for batch, other in itertools.islice(zip(opened.train(0), pairs.train(0)), 12):
            self.assertIn({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.buckets)
            for row in range(len(batch['inputs'])):
                place = 0
                for segment in range(1, other['segments'][row].max() + 1):
                    source = other['inputs'][row][other['segments'][row] == segment].tolist()
                    target = other['targets'][row][other['decoder_segments'][row] == segment].tolist()
                    self.assertEqual((source[-1], target[-1]), (END, END))
                    size, before = len(source) + len(target) - 1, len(source) - 1
                    part = {name: array[row, place : place + size].tolist() for name, array in batch.items()}
                    self.assertEqual(part['inputs'], source + target[:-1])
                    self.assertEqual(part['targets'], [0] * before + target)
                    self.assertEqual(part['weights'], [0] * before + [1] * len(target))
                    self.assertEqual(part['prefix'], [1] * len(source) + [0] * (len(target) - 1))
                    self.assertEqual(part['positions'], [*range(size)])
                    self.assertEqual(part['segments'], [segment] * size)
                    place += size
                for array in batch.values():
                    self.assertFalse(array[row, place:].any())

    def test_evaluation_holds_every_pair_once(self):
        opened, found = self.opened(valid='all', order='hash'), []
        for batch in opened.evaluation('all', 7):
            for row in np.flatnonzero(batch['example_weights']):
                there, marks = batch['segments'][row] > 0, batch['prefix'][row] > 0
                ids = batch['inputs'][row]
                found.append((bytes(ids[marks][:-1].tolist()).decode(), bytes(ids[there & ~marks].tolist()).decode()))
        self.assertEqual(sorted(found), sorted(PAIRS))
        self.assertEqual(opened.evaluation('all', 7).pairs()[0], found[0])

    def test_a_source_may_be_read_from_left_to_right(self):
        batch, other = (next(self.opened(bidirectional=both).train(0)) for both in (False, True))
        self.assertFalse(batch['prefix'].any())
        self.assertTrue(all(np.array_equal(batch[name], other[name]) for name in batch if name != 'prefix'))

    def test_facts_and_refusals(self):
        self.assertEqual(self.opened().facts, {'vocab': 257})
        with self.assertRaisesRegex(ValueError, "target_tokenizer='Byte.*' does not go with sources and targets in one row"):
            self.opened(target_tokenizer=Byte())
        made = self.opened(tokenizer=SentencePiece(vocab=280))
        made.save(self.folder)
        again = dataclasses.replace(made.config).open(self.folder)
        self.assertEqual(again.encode('abc').tolist(), made.encode('abc').tolist())
        self.assertTrue(again.bidirectional)


if __name__ == '__main__':
    absltest.main()
