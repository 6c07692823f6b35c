import importlib.util
import types
import unittest
from unittest import mock

import numpy as np
from absl.testing import absltest
from scipy import stats

from transformer.evaluators import metrics, texts
from transformer.evaluators.texts import Answers, Summaries, first_sentence

HAS_ROUGE = importlib.util.find_spec('rouge_score') is not None


class TextsCase(absltest.TestCase):
    def measured(self, evaluator, pairs, outputs, tasks=()):
        """The numbers for these outputs, whatever the model; asserts that they are those announced."""
        batches = types.SimpleNamespace(pairs=lambda: pairs, tasks=tasks)
        said = dict(zip((source for source, _ in pairs), outputs, strict=True))
        self.written = {}
        snapshot = types.SimpleNamespace(text=self.written.__setitem__)
        with mock.patch.object(texts, 'best_texts', lambda _, sources, strategy: [said[source] for source in sources]), (
                mock.patch.object(texts, 'require_translation', lambda *_: None)):
            names, numbers = evaluator.check(None, batches), evaluator(snapshot, batches)
        self.assertEqual([*numbers], [*names])
        return numbers


class AnswersTest(TextsCase):
    def test_each_task_has_its_own_numbers(self):
        pairs = [('a', 'yes'), ('b', 'no'), ('c', 'yes'), ('d', 'chat'), ('e', 'chien')]
        found = self.measured(Answers(), pairs, ['yes', 'yes', 'maybe', 'chat', 'chat'], ('x',) * 3 + ('y',) * 2)
        self.assertEqual(found, {'x_exact_match': 1 / 3, 'x_other': 1 / 3, 'y_exact_match': 0.5, 'y_other': 0.0})
        self.assertEqual(self.measured(Answers(), pairs[:2], ['yes', 'no']), {'exact_match': 1.0, 'other': 0.0})
        self.assertEqual(self.written['answers'].count('target:'), 2)

    def test_many_targets_are_no_classes(self):
        pairs = [(str(i), f'text {i}') for i in range(30)]
        self.assertEqual(self.measured(Answers(), pairs, ['text 3'] * 30), {'exact_match': 1 / 30})
        self.assertEqual([*self.measured(Answers(limit=2), pairs, ['text 3'] * 30)], ['exact_match'])  # whatever the limit

    def test_numbers_are_correlated(self):
        right, said = [0.2, 3.4, 5.0, 1.2], ['0.4', '3.0', 'many', '2.0']
        found = self.measured(Answers(), [(str(i), str(x)) for i, x in enumerate(right)], said)
        numbers = [0.4, 3.0, -1.0, 2.0]
        self.assertAlmostEqual(found['pearson'], np.corrcoef(right, numbers)[0, 1], places=12)
        self.assertAlmostEqual(found['spearman'], stats.spearmanr(right, numbers).statistic, places=12)
        same = self.measured(Answers(), [(str(i), str(x)) for i, x in enumerate(right)], ['1.0'] * 4)
        self.assertEqual((same['pearson'], same['spearman']), (0.0, 0.0))

    def test_limit_and_shown(self):
        pairs = [(f'{task}{i}', 'yes') for task in 'xy' for i in range(4)]
        found = self.measured(Answers(limit=2, shown=1), pairs, ['yes', 'yes', 'no', 'no'] * 2, ('x',) * 4 + ('y',) * 4)
        self.assertEqual(found, {'x_exact_match': 1.0, 'x_other': 0.0, 'y_exact_match': 1.0, 'y_other': 0.0})
        self.assertEqual(self.written['answers'].count('source:'), 2)
        with self.assertRaisesRegex(ValueError, 'Answers has limit=-1'):
            self.measured(Answers(limit=-1), pairs, [''] * 8)


class SummariesTest(TextsCase):
    @unittest.skipUnless(HAS_ROUGE, 'needs rouge-score')
    def test_rouge_of_outputs_and_of_first_sentences(self):
        pairs = [('summarize: The cat sat. It slept.', 'the cat slept'), ('summarize: A dog\nran', 'a dog runs')]
        found = self.measured(Summaries(), pairs, ['the cat sat', 'a dog ran'])
        self.assertAlmostEqual(found['rouge1'], 100 * 2 / 3)  # of each two words of three; 'ran' is no stem of 'runs'
        self.assertAlmostEqual(found['rouge2'], 100 / 2)
        self.assertAlmostEqual(found['first_rouge1'], 100 * (2 / 3 + 2 * 1.0 * (2 / 3) / (1.0 + 2 / 3)) / 2)
        self.assertEqual(found['pairs'], 2)
        self.assertContainsSubset(Summaries.percent, found)
        self.assertEqual(metrics.rouge_scores(['same words'], ['same words']), {'rouge1': 100, 'rouge2': 100, 'rougeL': 100})

    def test_without_the_library_it_says_so(self):
        with mock.patch.dict('sys.modules', rouge_score=None), self.assertRaisesRegex(ValueError, 'ROUGE needs rouge-score'):
            self.measured(Summaries(), [('a', 'b')], ['c'])

    def test_first_sentences(self):
        for text, wanted in (('One. Two.', 'One.'), ('One? Two.', 'One?'), ('One\nTwo.', 'One'),
                             (' v1.5 is here', 'v1.5 is here')):
            self.assertEqual(first_sentence(text), wanted)


if __name__ == '__main__':
    absltest.main()
