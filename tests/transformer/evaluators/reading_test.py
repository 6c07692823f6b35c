"""Scores of classes, labels, numbers, names and answers, against scikit-learn and its definitions in numpy, and scipy's."""

import types

import numpy as np
from absl.testing import absltest, parameterized
from sklearn import metrics

from transformer.evaluators.reading import AnswerScores, ClassScores, Correlation, Entities, LabelScores


class Batches(list):
    """Batches that can be told something more."""


def snapshot_of(logits, classes=()):
    """A snapshot whose model answers a batch with the logits of its rows."""
    task = types.SimpleNamespace(inputs=lambda batch: {'rows': batch['rows']})
    return types.SimpleNamespace(run=types.SimpleNamespace(task=task), apply=lambda rows: {'logits': logits[rows]},
                                 data=types.SimpleNamespace(classes=classes))


def batches_of(label):
    """Batches of two rows, the last one padded."""
    numbers = np.arange(len(label) + len(label) % 2).reshape(-1, 2)
    for rows in numbers:
        there = np.float32(rows < len(label))
        kept = np.minimum(rows, len(label) - 1)
        yield {'rows': kept, 'label': label[kept], 'example_weights': there}


class ReadingTest(parameterized.TestCase):
    @parameterized.parameters((2, ''), (2, 'a'), (3, 'c'), (4, ''))
    def test_classes_as_scikit_learn_scores_them(self, count, positive):
        """The model has a class that the data do not have; in the first draw one class neither occurs nor is said."""
        classes = tuple('abcd'[:count])
        for draw in range(20):
            rng = np.random.default_rng(draw)
            label, logits = rng.integers(count, size=31), rng.normal(size=(31, count + 1)).astype(np.float32)
            logits[:, count] = 9.0
            if count > 2 and not draw:
                label[label == 1], logits[:, 1] = 0, -9.0
            said = logits[:, :count].argmax(1)
            found = ClassScores(positive=positive)(snapshot_of(logits, classes), batches_of(np.int32(label)))
            wanted = {'accuracy': metrics.accuracy_score(label, said),
                      'macro_f1': 100 * metrics.f1_score(label, said, average='macro'),
                      'matthews': metrics.matthews_corrcoef(label, said)}
            if positive or count == 2:
                number = classes.index(positive or 'b')
                wanted['f1'] = 100 * metrics.f1_score(label == number, said == number)
            self.assertEqual(found.keys(), wanted.keys())
            for name, number in wanted.items():
                self.assertAlmostEqual(found[name], number, delta=1e-10, msg=name)

    @parameterized.parameters(
        (ClassScores(), {'label': [0, 1], 'said': [0, 1], 'positive': [[0, 0, 0], [1, 1, 1]]}),
        (LabelScores(), {'labels': [[2, 2, 2], [1, 1, 1]]}), (Correlation(), {'label': [0.5, 1.0], 'said': [0.5, 1.0]}),
        (Entities(), {'names': [[1, 1, 1]], 'strict': [[2, 2, 2]]}), (AnswerScores(), {'exact_match': [100.0], 'f1': [100.0]}))
    def test_a_perfect_score_is_100_per_cent_or_1(self, evaluator, found):
        numbers = evaluator.numbers({name: np.array(x) for name, x in found.items()})
        self.assertEqual({name: round(x, 9) for name, x in numbers.items()},
                         {name: 100 if name in evaluator.percent else 1 for name in numbers})

    def test_one_class_alone_is_no_correlation(self):
        found = ClassScores()(snapshot_of(np.float32([[1, 0]] * 4), ('no', 'yes')), batches_of(np.int32([0, 1, 0, 0])))
        self.assertEqual((found['accuracy'], found['f1'], found['matthews']), (0.75, 0.0, 0.0))

    def test_two_runs_are_scored_by_the_same_class(self):
        """Whose classes may stand in another order."""
        logits, label = np.float32([[1, 0], [1, 0], [0, 1], [0, 1]]), np.int32([0, 0, 1, 0])  # 1 is said twice, once rightly
        one, other = snapshot_of(logits, ('no', 'yes')), snapshot_of(logits[:, ::-1], ('yes', 'no'))
        evaluator = ClassScores().naming(one.data)
        found = evaluator(one, batches_of(label))
        self.assertAlmostEqual(found['f1'], 100 * 2 / 3)
        self.assertEqual(evaluator(other, batches_of(1 - label)), found)
        self.assertAlmostEqual(ClassScores()(other, batches_of(1 - label))['f1'], 80)  # of its own second class
        for evaluator, classes in (ClassScores(positive='a'), 'ab'), (ClassScores(), 'abc'), (Correlation(), ''):
            self.assertEqual(evaluator.naming(snapshot_of(logits, classes).data), evaluator)

    def test_classes_that_are_none_are_refused(self):
        data = lambda classes, dtype: types.SimpleNamespace(classes=classes, config=None, shapes={'label': ((8,), dtype)})
        run = lambda *given: types.SimpleNamespace(data=data(*given))
        self.assertEqual(ClassScores().check(run('ab', np.int32), None), ('accuracy', 'f1', 'macro_f1', 'matthews'))
        self.assertEqual(ClassScores().check(run('abc', np.int32), None), ('accuracy', 'macro_f1', 'matthews'))
        with self.assertRaisesRegex(ValueError, "positive='x', and the classes of this run are a, b; name one of these"):
            ClassScores(positive='x').check(run('ab', np.int32), None)
        with self.assertRaisesRegex(ValueError, 'one class each, but those of this run have another target'):
            ClassScores().check(run('a', np.float32), None)
        with self.assertRaisesRegex(ValueError, 'one class each, but those of this run have another target'):
            ClassScores().check(run(('LABEL_0',), np.int32), None)  # choices
        of_tags = types.SimpleNamespace(classes='ab', config=None, shapes={'targets': ((8, 4), np.int32)})
        with self.assertRaisesRegex(ValueError, 'one class each, but those of this run have another target'):
            ClassScores().check(types.SimpleNamespace(data=of_tags), None)

    def test_the_order_of_the_split_is_restored(self):
        """Of batches that say which rows they have, and may be of several lengths."""
        logits = np.float32([[0], [1], [2], [3], [4]])
        batches = [{'rows': np.array(rows), 'row': np.array(rows), 'label': np.float32(rows), 'inputs': np.zeros((2, size)),
                    'example_weights': np.float32(there)}
                   for rows, there, size in (([3, 1], [1, 1], 2), ([4, 0], [1, 1], 3), ([2, 0], [1, 0], 3))]
        found = Correlation().each(snapshot_of(logits), batches)
        self.assertEqual((found['label'].tolist(), found['said'].tolist()), ([0, 1, 2, 3, 4],) * 2)

    def test_labels(self):
        label = np.float32([[1, 0, 1], [0, 0, 0], [1, 1, 0]])
        logits = np.float32([[2, 1, -1, 5], [-1, -1, -1, 5], [3, 1, -2, 5]])  # and one that the data do not have
        found = LabelScores()(snapshot_of(logits), batches_of(label))  # 3 of 4 that are said are right, and 4 are
        self.assertEqual(found, {'f1': 75.0, 'precision': 75.0, 'recall': 75.0})
        silent = LabelScores()(snapshot_of(-np.abs(logits)), batches_of(label))
        self.assertEqual(silent, {'f1': 0.0, 'precision': 0.0, 'recall': 0.0})

    def test_correlation(self):
        label, logits = np.float32([1, 2, 4, 8, 16]), np.float32([[0], [1], [2], [4], [3]])
        found = Correlation()(snapshot_of(logits), batches_of(label))
        x, y = logits[:, 0] - 2.0, label - 6.2
        self.assertAlmostEqual(found['pearson'], (x * y).sum() / np.sqrt((x ** 2).sum() * (y ** 2).sum()), places=6)
        self.assertAlmostEqual(found['spearman'], 0.9, places=6)  # 1 - 6·2/(5·24)
        constant = Correlation()(snapshot_of(np.zeros((5, 1), np.float32)), batches_of(label))
        self.assertEqual(constant, {'pearson': 0.0, 'spearman': 0.0})

    def test_names_of_a_sentence_in_several_rows(self):
        """The first sentence has two rows, and a name goes from the one to the other."""
        classes = ('O', 'B-x', 'I-x', 'I-y')
        targets = np.array([[0, 1, 1], [2, 0, 0], [1, 0, 0]])  # rows begin with a special token, but where weights say not
        weights = np.float32([[0, 1, 1], [1, 1, 0], [1, 1, 0]])
        said = np.array([[3, 0, 1], [2, 0, 1], [3, 0, 0]])  # the second name of the first; and another type in the second
        logits = np.eye(5, dtype=np.float32)[said]
        logits[:, :, 4] = 2.0  # one that the data do not have
        batches = Batches(({'rows': np.array(rows), 'targets': targets[rows], 'weights': weights[rows],
                            'example_weights': np.float32(there)} for rows, there in (([0, 1], [1, 1]), ([2, 2], [1, 0]))))
        batches.sentences = np.array([0, 0, 1])
        snapshot = snapshot_of(logits)
        snapshot.data = types.SimpleNamespace(classes=classes, has_spans=True)
        found = Entities()(snapshot, batches)  # right are (0, 1), (1, 3) and (0, 1), found (1, 3) and (0, 1) of y
        self.assertEqual(found, {'f1': 40.0, 'precision': 50.0, 'recall': 100 / 3, 'strict_f1': 50.0})
        snapshot.data.has_spans = False
        self.assertEqual(Entities()(snapshot, batches), {})

    def test_answers(self):
        """Of two windows of one question the better one counts; no answer is best where its score says so."""
        window = lambda question: types.SimpleNamespace(question=question, first=1, ranges=np.array([[0, 3], [4, 7], [8, 11]]),
                                                        context='one two six')
        batches = Batches([{'rows': np.arange(4), 'example_weights': np.float32([1, 1, 1, 0])}])
        batches.windows = [window(0), window(0), window(1)]
        batches.questions = [types.SimpleNamespace(accepted=one) for one in (('two six',), ())]
        logits = {'start_logits': np.float32([[0, 1, 0, 0], [0, 0, 2, 0], [1, 1, 0, 0], [9, 0, 0, 0]]),
                  'end_logits': np.float32([[0, 1, 0, 0], [0, 0, 1, 3], [2, 1, 0, 0], [9, 0, 0, 0]])}
        task = types.SimpleNamespace(inputs=lambda batch: {'rows': batch['rows']})
        snapshot = types.SimpleNamespace(run=types.SimpleNamespace(task=task), apply=lambda rows: logits)
        for unanswerable, longest, wanted in ((True, 30, (100.0, 100.0)), (False, 30, (50.0, 50.0)),
                                              (True, 1, (50.0, 50.0 + 50 * 2 / 3))):
            snapshot.data = types.SimpleNamespace(unanswerable=unanswerable)
            found = AnswerScores(longest=longest)(snapshot, batches)
            np.testing.assert_allclose([found['exact_match'], found['f1']], wanted)

    @parameterized.parameters(LabelScores(), Correlation())
    def test_other_data_are_refused(self, evaluator):
        with self.assertRaisesRegex(ValueError, 'and NoneType has none; leave that evaluator out'):
            evaluator.check(types.SimpleNamespace(data=types.SimpleNamespace(config=None)), None)
        contract = ('classes', 'facts', 'frame', 'length', 'rows', 'pieces', 'read_text', 'read_orders', 'cut')
        texts = types.SimpleNamespace(**dict.fromkeys(contract, print), shapes={'label': ((8,), np.int32)})
        with self.assertRaisesRegex(ValueError, 'those of this run have another target; leave that evaluator out'):
            evaluator.check(types.SimpleNamespace(data=texts), None)


if __name__ == '__main__':
    absltest.main()
