import collections
import itertools

import numpy as np
from absl.testing import absltest, parameterized

from data.seq2seq.tasks import Mixing, Part, Tasks
from data.tokenizers.specs import Byte, SentencePiece

COUNTS = {'a': 40, 'b': 10, 'c': 150}
PREFIX = {name: f'{name}: ' for name in COUNTS}


class TasksTest(parameterized.TestCase):
    def opened(self, folder=None, changes=None, **fields):
        parts = {}
        for name, count in COUNTS.items():
            path = self.folder / f'{name}.tsv'
            path.write_text(''.join(f'{name}{i}\t{i % 2}\n' for i in range(count)))
            given = dict(path=str(path), inputs=f'{name}: {{1}}', target='{2}', words=('no', 'yes'), header='false',
                         order='file', train='all[:-4]', valid='all[-4:]')
            parts[name] = Part(**given | (changes or {}).get(name, {}))
        given = dict(parts=parts, tokenizer=Byte(), source_length=20, length=8, batch_size=4)
        return Tasks(**given | fields).open(folder)

    def pairs(self, opened, batches):
        """(source, target) of every pair of batches."""
        for batch in batches:
            for row in range(len(batch['inputs'])):
                for segment in range(1, batch['segments'][row].max() + 1):
                    source = batch['inputs'][row][batch['segments'][row] == segment]
                    target = batch['targets'][row][batch['decoder_segments'][row] == segment]
                    yield opened.decode(source), opened.decode(target)

    @parameterized.parameters('first_fit', 'none')
    def test_every_example_is_drawn_in_proportion(self, packing):
        opened = self.opened(packing=packing)
        found = collections.Counter(itertools.islice(self.pairs(opened, opened.train(0)), 3 * 188))
        for (source, target), count in found.items():
            number = int(source[4:])
            self.assertEqual((source[:3], target), (PREFIX[source[0]], ('no', 'yes')[number % 2]))
            self.assertBetween(count, 2, 4)  # three epochs, whose ends packing moves
        self.assertLen(found, 188)

    def test_a_row_holds_examples_of_several_tasks(self):
        opened = self.opened(limit=10, source_length=40, length=24)
        batch = next(opened.train(0))
        sources = [opened.decode(batch['inputs'][0][batch['segments'][0] == i])[0] for i in range(1, 4)]
        self.assertGreater(len({*sources}), 1)

    def test_limit_and_temperature(self):
        shares = lambda **fields: Mixing.of((36, 6, 146), size=1, seed=0, **{'limit': 0, 'temperature': 1.0} | fields).shares
        np.testing.assert_allclose(shares(), np.array([36, 6, 146]) / 188)
        np.testing.assert_allclose(shares(limit=40), np.array([36, 6, 40]) / 82)
        roots = np.sqrt([36, 6, 40])
        np.testing.assert_allclose(shares(limit=40, temperature=2.0), roots / roots.sum())
        np.testing.assert_allclose(shares(temperature=1e9), [1 / 3] * 3, rtol=1e-6)
        opened = self.opened(limit=40, temperature=2.0)
        found = collections.Counter(source[0] for source, _ in itertools.islice(self.pairs(opened, opened.train(0)), 4000))
        np.testing.assert_allclose([found[name] / 4000 for name in COUNTS], roots / roots.sum(), atol=0.02)

    @parameterized.parameters(1, 7, 64, 1000)
    def test_draws_are_one_sequence_whatever_their_size(self, size):
        mixing = lambda size: Mixing.of((5, 50, 7), 20, 2.0, size, 3)
        whole = mixing(2000)(0)
        found = np.concatenate([mixing(size)(draw) for draw in range(-(-2000 // size))])[:2000]
        np.testing.assert_array_equal(found, whole)
        for first, last in ((0, 5), (5, 55), (55, 62)):  # all examples of a task before any comes again
            own = whole[(whole >= first) & (whole < last)]
            counts = np.bincount(own - first, minlength=last - first)
            self.assertLessEqual(counts.max() - counts.min(), 1)

    def test_resumes_exactly(self):
        opened = self.opened()
        iterator = opened.train(1)
        for _ in range(3):
            next(iterator)
        state = iterator.get_state()
        rest = [next(iterator) for _ in range(20)]
        again = self.opened().train(1)
        again.set_state(state)
        for one in rest:
            other = next(again)
            self.assertTrue(all(np.array_equal(one[name], other[name]) for name in one))

    def test_evaluation_of_all_tasks_and_of_one(self):
        opened = self.opened(changes={'b': dict(valid='')})
        self.assertEqual(sorted(source for source, _ in self.pairs(opened, opened.evaluation('valid[:50%]', 2))),
                         sorted(f'{PREFIX[name]}{name}{i}' for name in 'ac' for i in range(COUNTS[name] - 4, COUNTS[name] - 2)))
        whole = opened.evaluation('valid', 5)
        self.assertEqual((whole.facts['pairs'], whole.tasks), (8, ('a',) * 4 + ('c',) * 4))
        self.assertEqual(whole.pairs()[0], ('a: a36', 'no'))
        one = opened.evaluation('c.valid', 5)
        self.assertEqual((one.tasks, one.pairs()[0][0]), (('c',) * 4, 'c: c146'))
        self.assertEqual(opened.evaluation('c.all[:2]', 5).pairs(), [('c: c0', 'no'), ('c: c1', 'yes')])
        with self.assertRaisesRegex(ValueError, "In the task 'b': data.valid is empty"):
            opened.evaluation('b.valid', 5)

    def test_training_shares_no_source_with_held_out_examples(self):
        path = self.folder / 'twice.tsv'
        path.write_text(''.join(f'same {i % 30}\t{i % 2}\n' for i in range(60)))
        part = Part(path=str(path), inputs='{1}', target='{2}', header='false')
        opened = Tasks(parts={'t': part}, tokenizer=Byte()).open(None)
        texts = {split: {source for source, _ in opened.config.part(split).texts} for split in ('train', 'valid')}
        self.assertFalse(texts['train'] & texts['valid'])
        self.assertGreater(len(texts['train']), 20)

    @parameterized.parameters('inputs', 'both')
    def test_training_shares_no_target_with_held_out_examples(self, apart):
        path = self.folder / 'translations.tsv'
        path.write_text(''.join(f'target {i % 40}\tsource {i}\n' for i in range(80)))
        part = Part(path=str(path), inputs='{2}', target='{1}', header='false', apart=apart)
        opened = Tasks(parts={'t': part}, tokenizer=Byte()).open(None)
        train, valid = (opened.config.part(split) for split in ('train', 'valid'))
        shared = {target for _, target in train.texts} & {target for _, target in valid.texts}
        self.assertEqual(bool(shared), apart == 'inputs')
        self.assertEqual(len(train.texts) + train.left_out, 72)
        left = '' if apart == 'inputs' else f', without {train.left_out} that share a side with held-out ones'
        self.assertEndsWith(opened.describe().partition(';')[0], f' examples to train on{left}')

    def test_tasks_without_a_path_are_left_out(self):
        opened = self.opened(changes={'b': dict(path='')})
        self.assertEqual([*opened.config.tasks], ['a', 'c'])
        self.assertRegex(opened.describe(), r'2 tasks as text: a 19.8% of 36, c 80.2% of 146 examples to train on; Byte')

    def test_fields_of_rows(self):
        made = self.opened(text='textbook', start=7, packing='none')
        batch = next(made.train(0))
        self.assertEqual({*batch['decoder_inputs'][:, 0]}, {7})
        self.assertEqual((made.encode('A. B')[:-1].tolist(), made.lengths), ([*b'a . b'], (20, 8)))
        framed = self.opened(framing='begin a end | begin a b end', tokenizer=Byte(special=('begin',)), packing='none')
        batch = next(framed.train(0))
        self.assertEqual({*batch['inputs'][:, 0], *batch['targets'][:, 0]}, {257})

    def test_fields_of_a_task(self):
        path = self.folder / 'other.csv'
        path.write_bytes('"caf\xe9",2.57\n"th\xe9",1\n'.encode('latin-1'))
        given = dict(path=str(path), inputs='{1}', target='{2}', header='false', quotes='true', encoding='latin-1', step=0.5,
                     train='all', valid='', order='file')
        pairs = lambda **fields: Tasks(parts={'t': Part(**given | fields)}, tokenizer=Byte()).part('train').texts
        self.assertEqual(pairs(), [('caf\xe9', '2.5'), ('th\xe9', '1.0')])
        self.assertEqual(pairs(header='true'), [('th\xe9', '1.0')])
        self.assertEqual(pairs(quotes='false')[0], ('"caf\xe9"', '2.5'))
        self.assertEqual(sorted(pairs(order='hash')), sorted(pairs()))
        path.write_text(''.join(f'{i},1\n' for i in range(30)))
        self.assertNotEqual(pairs(order='hash', encoding='utf-8'), pairs(encoding='utf-8'))

    @parameterized.parameters(
        (dict(changes={name: dict(path='') for name in COUNTS}), 'No task has data: of data.parts .a, b, c. set the path'),
        (dict(changes={'a': dict(source='b')}), "data.parts.a.source='b' is not known"),
        (dict(changes={'a': dict(apart='targets')}), "data.parts.a.apart='targets' is not known"),
        (dict(changes={'a': dict(inputs='')}), 'data.parts.a needs a name without a dot, inputs such as'),
        (dict(changes={'a': dict(train='all[:50%]', valid='all[:10]')}), "In the task 'a': data.train"),
        (dict(changes={'a': dict(source='docstrings')}),
         "data.parts.a.path='.*a.tsv' is not read with data.parts.a.source='docstrings'; leave it empty"),
        (dict(packing='buckets'), "data.packing='buckets' is not known"),
        (dict(long='truncat'), "^data.long='truncat' is not known"),
        (dict(long='refuse', tokenizer=SentencePiece(vocab=300, kind='bpe', dropout=0.2)),
         "^data.long='refuse' refuses pairs that are too long, but data.tokenizer='SentencePiece"),
        (dict(temperature=0.0), 'data.temperature=0.0 are out of range'),
        (dict(long='drop', changes={'a': dict(inputs='a long, long beginning: {1}')}), "No example of the task 'a' is within"))
    def test_refuses(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            next(self.opened(**fields).train(0))


if __name__ == '__main__':
    absltest.main()
