"""Texts whose segmentation is drawn anew in every epoch of training, and only there."""

import itertools
import json
import os
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.masking import Tokens
from data.seq2seq.corrupted import Corrupted
from data.seq2seq.parallel import Parallel
from data.seq2seq.prefixed import Prefixed
from data.seq2seq.tasks import Part, Tasks
from data.text import mixture
from data.text.documents import Text
from data.text.labelled import Labelled
from data.text.masked import Masked
from data.tokenizers.specs import SentencePiece, Word

RNG = np.random.default_rng(0)
WORDS = [''.join(RNG.choice([*'etaoinsr'], size)) for size in RNG.integers(2, 8, 60)]
LINES = [' '.join(RNG.choice(WORDS, size)) for size in RNG.integers(4, 20, 120)]
KINDS = {
    'first fit': (Text, dict(documents='line')), 'concat': (Text, dict(documents='line', packing='concat')),
    'none': (Text, dict(documents='line', packing='none')), 'stream': (Text, dict(documents='stream')),
    'masked': (Masked, dict(documents='line', framing='t5')), 'gaps': (Corrupted, dict(documents='line')),
    'pairs': (Parallel, dict(source='table', packing='first_fit')),
    'buckets': (Parallel, dict(source='table', packing='buckets')),
    'two tokenizers': (Parallel, dict(source='table', packing='none', target_tokenizer=Word())),
    'one row': (Prefixed, dict(source='table')), 'tasks': (Tasks, {}), 'classes': (Labelled, {})}
PAIRS = Parallel, Prefixed, Tasks
SPECIAL = {'masked': dict(special=('mask',)), 'gaps': dict(sentinels=30)}


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class EpochsCase(parameterized.TestCase):
    def opened(self, case, folder=None, length=32, **spec):
        pipeline, fields = KINDS[case]
        path, line = self.folder / ('table.tsv' if pipeline in (*PAIRS, Labelled) else 'text.txt'), LINES
        if pipeline in PAIRS:
            line = [f'{one}\t{one[::-1]}' for one in LINES]
        elif pipeline is Labelled:
            line = ['text\tlabel', *(f'{one}\t{len(one) % 2}' for one in LINES)]
        path.write_text('\n'.join(line) + '\n')
        given = dict(path=str(path), train='all[:100]', valid='all[100:]', test='', length=length, batch_size=4)
        if fields.get('documents') == 'stream':
            given |= dict(train='all[:80%]', valid='all[80%:]')
        if pipeline in PAIRS:
            given |= dict(source_length=96, length=96, long='drop')
        if pipeline is Tasks:
            part = {name: given.pop(name) for name in ('path', 'train', 'valid', 'test')}
            given['parts'] = {'reverse': Part(**part, order='file', inputs='{1}', target='{2}')}
        spec = SentencePiece(**dict(vocab=330) | SPECIAL.get(case, {}) | (spec or dict(dropout=0.2)))
        return pipeline(**given | dict(tokenizer=spec) | fields).open(folder)


class EpochsTest(EpochsCase):
    @parameterized.parameters(*KINDS)
    def test_a_run_resumes_exactly_and_epochs_differ(self, kind):
        opened = self.opened(kind)
        iterator, states, batches = opened.train(0), [], []
        while len(states) < 2 or states[-2]['epoch'] < 2:
            states.append(json.loads(json.dumps(iterator.get_state())))
            batches.append(next(iterator))
        changes = [i for i, (one, two) in enumerate(itertools.pairwise(states)) if one['epoch'] != two['epoch']]
        self.assertLen(changes, 2)
        for place in (0, 1, changes[0] - 1, changes[0], changes[0] + 1, changes[1] + 1):
            again = opened.train(0)
            next(again)
            again.set_state(states[place])
            self.assertTrue(all(equal(batch, next(again)) for batch in batches[place:place + 9]), place)
        self.assertFalse(any(equal(one, two) for i, one in enumerate(batches) for two in batches[:i]))
        other = opened.train(1)
        self.assertFalse(any(equal(next(other), two) for two in batches))
        sizes = {str(batch['inputs'].shape[1:]) for batch in batches}
        self.assertLessEqual(len(sizes), len(opened.buckets))

    @parameterized.parameters(*KINDS)
    def test_evaluation_has_the_usual_tokens(self, kind):
        drawing, plain = self.opened(kind), self.opened(kind, dropout=0.0)
        next(drawing.train(0))
        for split in ('train', 'valid'):
            found, wanted = ([*opened.evaluation(split, 8)] for opened in (drawing, plain))
            self.assertTrue(all(map(equal, found, wanted)))
            self.assertLen(found, len(wanted))
        self.assertEqual(drawing.encode(LINES[0]).tolist(), plain.encode(LINES[0]).tolist())
        self.assertEqual(drawing.batches_per_epoch, plain.batches_per_epoch)
        self.assertEqual(drawing.describe(), plain.describe())
        self.assertNotIn('inner', plain.train(0).get_state())  # without draws nothing is tokenized again

    @parameterized.parameters(dict(dropout=0.3), dict(kind='unigram', alpha=0.2))
    def test_each_epoch_has_all_of_the_text(self, **spec):
        if spec.get('kind') == 'unigram':
            spec['vocab'] = 300
        opened = self.opened('none', length=200, **spec)
        iterator, epochs = opened.train(0), []
        for _ in range(3):
            rows = []
            for _ in range(25):  # batches of four of the 100 lines
                batch = next(iterator)
                rows += [tuple(row[weights > 0].tolist()) for row, weights in zip(batch['targets'], batch['weights'])]
            self.assertCountEqual([opened.decode(row) for row in rows], LINES[:100])
            epochs.append({*rows})
        self.assertEqual(iterator.get_state()['epoch'], 2)
        usual = {(*opened.encode(line).tolist(), opened.end) for line in LINES[:100]}
        for one, other in itertools.combinations([usual, *epochs], 2):
            self.assertLess(len(one & other), 70)

    def test_each_epoch_of_packed_rows_has_nearly_all_of_the_text(self):
        opened = self.opened('first fit', length=200)
        iterator, seen = opened.train(0), [set(), set(), set()]
        while True:
            batch = next(iterator)
            if (epoch := iterator.get_state()['epoch']) == len(seen):
                break
            for row, segments in zip(batch['targets'], batch['segments']):
                seen[epoch] |= {opened.decode(row[segments == number]) for number in range(1, segments.max() + 1)}
        for lines in seen:
            self.assertGreaterEqual(len(lines & {*LINES[:100]}), 97)

    def test_all_dropped_merges_leave_characters(self):
        opened = self.opened('none', dropout=1.0)
        batch = next(opened.train(0))
        signs = opened.pieces(batch['targets'][batch['weights'] > 0])
        self.assertEqual({len(sign) for sign in signs if sign != '</s>'}, {1})

    def test_nothing_stays_in_the_cache(self):
        opened = self.opened('none')
        opened.describe()
        cache = pathlib.Path(os.environ['HEED_CACHE'])
        before = sorted(path.name for path in cache.rglob('*'))
        iterator = opened.train(0)
        for _ in range(60):
            next(iterator)
        self.assertGreater(iterator.get_state()['epoch'], 0)
        self.assertEqual(sorted(path.name for path in cache.rglob('*')), before)

    def test_a_tokenizer_learnt_without_draws_is_used(self):
        self.opened('none', dropout=0.0).save(self.folder)
        opened = self.opened('none', folder=self.folder)
        self.assertEqual(opened.tokenizer, self.opened('none').tokenizer)
        self.assertIn('inner', opened.train(0).get_state())

    def test_a_mixture_draws_in_each_of_its_texts(self):
        parts = {}
        for name, lines in (('one', LINES[:60]), ('two', LINES[60:])):
            (self.folder / f'{name}.txt').write_text('\n'.join(lines) + '\n')
            parts[name] = mixture.Part(weight=1.0, path=str(self.folder / f'{name}.txt'))
        make = lambda **spec: mixture.Mixture(parts=parts, documents='line', packing='none', length=32, batch_size=4,
                                              tokenizer=SentencePiece(vocab=330, **spec)).open(None)
        opened = make(dropout=0.2)
        iterator, batches, states = opened.train(0), [], []
        for _ in range(40):
            states.append(json.loads(json.dumps(iterator.get_state())))
            batches.append(next(iterator))
        again = opened.train(0)
        again.set_state(states[25])
        self.assertTrue(all(equal(batch, next(again)) for batch in batches[25:]))
        plain = make().train(0)
        self.assertFalse(any(equal(next(plain), batch) for batch in batches))

    def test_what_does_not_go_together(self):
        tokenizer = SentencePiece(vocab=330, special=('mask',), dropout=0.1)
        with self.assertRaisesRegex(ValueError, r'data.copies=2 draws the noise of each row once, but .* set data.copies=0'):
            Masked(path='x', tokenizer=tokenizer, copies=2, noise=Tokens()).check()
        for field in ('tokenizer', 'target_tokenizer'):
            with self.assertRaisesRegex(ValueError, r"data.long='refuse' refuses pairs .*dropout=0.1.*set data.long to 'drop'"):
                Parallel(long='refuse', **{field: tokenizer}).check()


if __name__ == '__main__':
    absltest.main()
