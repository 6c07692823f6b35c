"""Scores of labels, numbers, names and answers, against scikit-learn's definitions in numpy and scipy's."""

import types

import numpy as np
from absl.testing import absltest, parameterized

from transformer.evaluators.reading import AnswerScores, Correlation, Entities, LabelScores


class Batches(list):
    """Batches that can be told something more."""


def snapshot_of(logits):
    """A snapshot whose model answers a batch with the logits of its rows."""
    task = types.SimpleNamespace(inputs=lambda batch: {'rows': batch['rows']})
    return types.SimpleNamespace(run=types.SimpleNamespace(task=task), apply=lambda rows: {'logits': logits[rows]})


def batches_of(label):
    """Batches of two rows, the last one padded."""
    numbers = np.arange(len(label) + len(label) % 2).reshape(-1, 2)
    for rows in numbers:
        there = np.float32(rows < len(label))
        kept = np.minimum(rows, len(label) - 1)
        yield {'rows': kept, 'label': label[kept], 'example_weights': there}


class ReadingTest(parameterized.TestCase):
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
        self.assertEqual(found, {'f1': 40.0, 'precision': 50.0, 'recall': 100 / 3})
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
        contract = ('classes', 'facts', 'frame', 'length', 'rows', 'pieces', 'read_text')
        texts = types.SimpleNamespace(**dict.fromkeys(contract, print), shapes={'label': ((8,), np.int32)})
        with self.assertRaisesRegex(ValueError, 'those of this run have another target; leave that evaluator out'):
            evaluator.check(types.SimpleNamespace(data=texts), None)


if __name__ == '__main__':
    absltest.main()
