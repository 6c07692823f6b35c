"""Scores of labels and of numbers, against scikit-learn's definitions in numpy and scipy's."""

import types

import numpy as np
from absl.testing import absltest, parameterized

from transformer.evaluators.reading import Correlation, LabelScores


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

    @parameterized.parameters(LabelScores(), Correlation())
    def test_other_data_are_refused(self, evaluator):
        with self.assertRaisesRegex(ValueError, 'and NoneType has none; leave that evaluator out'):
            evaluator.check(types.SimpleNamespace(data=types.SimpleNamespace(config=None)), None)
        contract = ('classes', 'facts', 'frame', 'length', 'rows', 'pieces', 'read_text')
        texts = types.SimpleNamespace(**dict.fromkeys(contract, print), shapes={'label': ((8,), np.int32)})
        with self.assertRaisesRegex(ValueError, 'those of this run have classes or others; leave that evaluator out'):
            evaluator.check(types.SimpleNamespace(data=texts), None)


if __name__ == '__main__':
    absltest.main()
