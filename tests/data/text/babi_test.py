import io
import json
import pathlib
import shutil
import tarfile
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from data.text.babi import TASKS, Babi
from tests.experiments import story

NAMES = 'mary', 'john', 'daniel', 'sandra'


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class BabiCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, task, text, part='train', size='en-10k'):
        path = self.folder / size / f'qa{task}_some-name_{part}.txt'
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def tasks(self):
        """Ten stories of task 1, twenty of task 2."""
        self.write(1, ''.join(map(story, range(10))))
        self.write(2, ''.join(map(story, range(20))))
        return dict(path=str(self.folder), tasks=(1, 2), batch_size=4)

    def everything(self, evaluation):
        batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
        return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}

    def spelt(self, opened, ids):
        return ' '.join(opened.vocabulary[i] for i in ids if i)


class FormsTest(BabiCase):
    def test_memories_are_the_latest_sentences_the_last_one_first(self):
        self.write(6, story(0) + story(1))
        opened = Babi(str(self.folder), tasks=(6,), memory=3, train='train').open(None)
        rows = self.everything(opened.evaluation('train[:1]', 5))
        told = [[self.spelt(opened, ids) for ids in one] for one in rows['story']]
        self.assertEqual(told, [['mary moved to the garden', 'john went to the kitchen', ''],
                                ['mary slept', 'john got the milk', 'john got the apple']])
        self.assertEqual([self.spelt(opened, ids) for ids in rows['question']], ['where is mary', 'what is john carrying'])
        self.assertEqual([opened.answer(i) for i in rows['label']], ['garden', 'apple,milk'])
        np.testing.assert_array_equal(rows['task'], [6, 6])
        self.assertTrue((np.diff(np.int32(rows['story'] > 0)) <= 0).all())  # words first, then nothing

    def test_a_memory_no_longer_than_the_stories(self):
        self.write(6, story(0))
        self.assertEqual(Babi(str(self.folder), tasks=(6,), train='train').open(None).facts['memory'], 5)

    def test_what_training_lacks(self):
        self.write(6, story(0) + '1 Mary jumped over the garden quickly one day.\n2 Where is Mary?\tspace\t1\n')
        opened = Babi(str(self.folder), tasks=(6,), train='train[:1]', valid='train[1:]').open(None)
        rows = self.everything(opened.evaluation('valid', 2))
        self.assertEqual(rows['label'].tolist(), [0])
        self.assertEqual([opened.vocabulary[i] for i in rows['story'][0, 0]],
                         ['mary', '', '', 'the', 'garden', '', '', ''])
        self.assertEqual(opened.shapes['story'][0][2], 8)  # a model that learns places has one for each word of validation


class ContractTest(BabiCase):
    def test_contract(self):
        opened = Babi(**self.tasks()).open(None)
        batch = next(opened.train(0))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
        self.assertEqual((opened.count(batch), opened.unit), (4, 'questions'))
        self.assertEqual(opened.batches_per_epoch, 54 / 4)  # nine tenths of thirty stories of two questions
        self.assertEqual(opened.facts['vocab'], len(opened.vocabulary))
        self.assertIn('bAbI 10k, tasks 1, 2: 54 questions to train on', opened.describe())

    def test_each_task_gives_its_last_tenth_by_whole_stories(self):
        opened = Babi(**self.tasks()).open(None)
        valid = opened.evaluation('valid', 4)
        self.assertEqual(valid.facts, {'questions': 6, 'tasks': (1, 2)})
        rows = self.everything(valid)
        self.assertEqual(rows['task'].tolist(), [1, 1, 2, 2, 2, 2])
        asked = [self.spelt(opened, ids) for ids in rows['question']][::2]
        self.assertEqual(asked, [f'where is {NAMES[i % 4]}' for i in (9, 18, 19)])

    def test_test_files_are_the_test_part(self):
        fields = self.tasks()
        with self.assertRaisesRegex(ValueError, "'test' names no part of this data; known are train"):
            Babi(**fields).open(None).evaluation('test', 4)
        for task in (1, 2):
            self.write(task, story(3), 'test')
        self.assertEqual(Babi(**fields).open(None).evaluation('test', 4).facts, {'questions': 4, 'tasks': (1, 2)})

    def test_what_is_held_out_is_apart_from_training(self):
        opened = Babi(**self.tasks(), train='train', valid='train[50%:]', test='train[:3]').open(None)
        for split in ('valid', 'test', 'valid[:1]'):
            with self.assertRaisesRegex(ValueError, "data.train='train' and data.(valid|test)='train.*overlap in the train "
                                        'part of task 1; give each'):
                opened.evaluation(split, 4)
        opened.evaluation('train[:3]', 4)  # an expression itself
        opened = Babi(**self.tasks(), train='train[:8]', valid='train[8:]').open(None)
        self.assertEqual(opened.evaluation('valid', 4).facts['questions'], 28)

    def test_all_tasks_and_both_sizes(self):
        for task in TASKS:
            self.write(task, story(task))
            self.write(task, story(task) + story(0), size='en')
        counts = {size: Babi(str(self.folder), size, train='train').open(None).evaluation('train', 8).facts['questions']
                  for size in ('1k', '10k')}
        self.assertEqual(counts, {'1k': 80, '10k': 40})

    def test_an_archive_and_a_folder_of_archives_are_read_as_a_folder_is(self):
        fields = self.tasks() | {'tasks': (2,)}
        plain = Babi(**fields).open(None)
        packed = self.folder / 'packed'
        packed.mkdir()
        with tarfile.open(packed / 'babi.tar.gz', 'w:gz') as archive:
            text = (self.folder / 'en-10k' / 'qa2_some-name_train.txt').read_bytes()
            member = tarfile.TarInfo('tasks_1-20_v1-2/en-10k/qa2_some-name_train_PART.txt')
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        whole = (packed / 'babi.tar.gz').read_bytes()
        (self.folder / 'short.tar.gz').write_bytes(whole[:len(whole) // 2])
        (self.folder / 'plain.txt').write_bytes(text)
        for name in ('short.tar.gz', 'plain.txt'):
            with self.assertRaisesRegex(ValueError, f'{name} cannot be read .*; data.path must be a complete') as caught:
                Babi(**fields | {'path': str(self.folder / name)}).open(None)
            self.assertNotIn('\n', str(caught.exception))
            (self.folder / name).unlink()
        for path in (packed, packed / 'babi.tar.gz', self.folder / 'en-10k'):
            other = Babi(**fields | {'path': str(path)}).open(None)
            self.assertTrue(equal(next(plain.train(0)), next(other.train(0))))
            self.assertEqual(plain.digest('valid'), other.digest('valid'))

    def test_every_question_comes_once_an_epoch_and_a_run_resumes_exactly(self):
        opened = Babi(**self.tasks() | {'batch_size': 6}).open(None)
        iterators = [opened.train(seed) for seed in (0, 0, 1)]
        runs = [[next(iterator) for _ in range(18)] for iterator in iterators]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(equal(runs[0][0], runs[2][0]))
        row = lambda batch, i: tuple(np.concatenate([batch['story'][i].ravel(), batch['question'][i], [batch['task'][i]]]))
        epochs = [sorted(row(batch, i) for batch in run for i in range(6)) for run in (runs[0][:9], runs[0][9:])]
        self.assertEqual(epochs[0], epochs[1])
        self.assertFalse(equal(runs[0][0], runs[0][9]))
        iterator = opened.train(0)
        for _ in range(4):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        again = opened.train(0)
        again.set_state(state)
        self.assertTrue(all(equal(batch, next(again)) for batch in runs[0][4:12]))

    def test_digests_name_contents(self):
        fields = self.tasks()
        digests = lambda: [Babi(**fields).open(None).digest(split) for split in ('train', 'valid')]
        before = digests()
        self.assertNotEqual(*before)
        self.assertEqual(digests(), before)
        self.write(2, ''.join(map(story, range(1, 21))))
        self.assertNotEqual(digests()[0], before[0])

    def test_a_saved_vocabulary_needs_no_files(self):
        fields = self.tasks()
        opened = Babi(**fields).open(None)
        opened.save(self.folder / 'run')
        text = story(5)
        for path, given in (('nowhere', (self.folder / 'run', None)), (fields['path'], (None, self.folder / 'run'))):
            again = Babi(**fields | {'path': path}).open(*given)
            self.assertEqual((again.facts, again.shapes, again.vocabulary), (opened.facts, opened.shapes, opened.vocabulary))
            self.assertTrue(equal(again.read_stories(text)[1], opened.read_stories(text)[1]))
        with self.assertRaisesRegex(FileNotFoundError, "'nowhere' does not exist; data.path must be"):
            Babi(**fields | {'path': 'nowhere'}).open(self.folder / 'run').train(0)
        (self.folder / 'run' / 'vocabulary.json').write_text('{"words": []}')
        with self.assertRaisesRegex(ValueError, 'vocabulary.json describes no vocabulary of stories; restore it'):
            Babi(**fields).open(self.folder / 'run')

    def test_a_run_to_start_from_must_know_the_words_and_look_as_far_back(self):
        fields = self.tasks()
        Babi(**fields | {'memory': 2}).open(None).save(self.folder / 'short')
        with self.assertRaisesRegex(ValueError, 'short looks at 2 sentences, and data.memory is 50; set it to 2'):
            Babi(**fields).open(None, self.folder / 'short')
        self.assertEqual(Babi(**fields | {'memory': 2}).open(None, self.folder / 'short').facts['memory'], 2)
        self.write(3, '1 Mary went to the garden.\n2 Sandra jumped.\n3 Where is Mary?\tgarden\t1\n')
        Babi(**fields | {'tasks': (3,), 'train': 'train'}).open(None).save(self.folder / 'other')
        with self.assertRaisesRegex(ValueError, "other has not learnt 12 words of the training part, such as 'apple'"):
            Babi(**fields).open(None, self.folder / 'other')

    def test_score_takes_the_task_from_the_name(self):
        opened = Babi(**self.tasks()).open(None)
        paths = [str(self.folder / name) for name in ('qa7_mine.txt', 'mine.txt')]
        for path in paths:
            pathlib.Path(path).write_text(story(1))
        evaluation = opened.score(paths, 3)
        self.assertEqual(evaluation.facts, {'questions': 4, 'tasks': (0, 7)})
        self.assertEqual(self.everything(evaluation)['task'].tolist(), [7, 7, 0, 0])
        with self.assertRaisesRegex(FileNotFoundError, "'none.txt' does not exist"):
            opened.score(['none.txt'], 3)

    def test_short_sentences_are_as_wide_as_those_of_training(self):
        opened = Babi(**self.tasks()).open(None)
        width, (_, batch) = opened.shapes['story'][0][2], opened.read_stories('1 Mary went.\n2 Where is Mary?\n')
        self.assertGreater(width, 3)
        self.assertEqual((batch['story'].shape[2], batch['question'].shape[1]), (width, width))

    def test_reads_stories_with_answers_and_without(self):
        opened = Babi(**self.tasks()).open(None)
        asked, batch = opened.read_stories('1 Mary went to the office.\n2 Where is Mary?\n'
                                           '3 John slept.\n4 Where is John?\tgarden')
        self.assertEqual([(q.text, q.answer, q.sentences, q.line) for q in asked], [
            ('Where is Mary?', '', ['Mary went to the office.'], 2),
            ('Where is John?', 'garden', ['Mary went to the office.', 'John slept.'], 4)])
        self.assertEqual(self.spelt(opened, batch['story'][1, 0]), 'john slept')
        self.assertEqual([opened.answer(label) for label in batch['label']], ['', 'garden'])
        with self.assertRaisesRegex(ValueError, "Stdin: the question in line 2 is about 'anna', a word that is not among"):
            opened.read_stories('1 Anna slept.\n2 Where is Mary?', 'Stdin')


class BadInputTest(BabiCase):
    def test_files(self):
        self.write(1, story(0))
        fields = dict(path=str(self.folder), tasks=(1,))
        damaged = self.folder / 'damaged.tar.gz'
        for change, pattern in (
                (dict(tasks=(1, 2)), 'has no file en-10k/qa2_.*_train.txt; set data.path to where'),
                (dict(size='1k'), 'has no file en/qa1_'),
                (dict(path='nowhere'), "'nowhere' does not exist"),
                (dict(path=str(damaged)), 'damaged.tar.gz cannot be read'),
                (dict(size='2k'), "data.size='2k' is not known; it takes '1k', '10k'"),
                (dict(tasks=(21,)), r'data.tasks=\(21,\) does not fit; give different numbers from 1 to 20'),
                (dict(tasks=(1, 1)), 'data.tasks=.1, 1. does not fit'),
                (dict(memory=0), 'data.memory=0 is out of range'), (dict(batch_size=0), 'data.batch_size=0 is out of range'),
                (dict(train='dev'), "'dev' names no part of this data; known are train"),
                (dict(train='train[:0]'), "'train.:0.' is empty")):
            damaged.write_bytes(b'\x1f\x8bnot an archive')
            if 'damaged' not in change.get('path', ''):
                damaged.unlink()
            with self.assertRaisesRegex((ValueError, FileNotFoundError), pattern):
                Babi(**fields | change).open(None)
        (self.folder / 'en-10k' / 'qa1_other_train.txt').write_text(story(0))
        with self.assertRaisesRegex(ValueError, 'are both the train part of task 1; remove one'):
            Babi(**fields).open(None)

    def test_bytes_that_are_no_text(self):
        self.write(1, story(0))
        (self.folder / 'en-10k' / 'qa1_some-name_train.txt').write_bytes(b'1 Mary \xff\n')
        with self.assertRaisesRegex(ValueError, 'qa1_some-name_train.txt is not UTF-8: byte 7 cannot be decoded'):
            Babi(str(self.folder), tasks=(1,)).open(None)

    def test_splits_and_views(self):
        opened = Babi(**self.tasks() | {'test': ''}).open(None)
        with self.assertRaisesRegex(ValueError, 'data.test is empty, so there is no such split'):
            opened.evaluation('test', 4)
        with self.assertRaisesRegex(ValueError, 'Babi takes no stride in evaluation'):
            opened.evaluation('valid', 4, stride=2)


if __name__ == '__main__':
    absltest.main()
