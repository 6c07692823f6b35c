import types
from unittest import mock

import numpy as np
from absl.testing import absltest
from scipy import stats

from transformer.evaluators import metrics, paired, texts
from transformer.evaluators.texts import Answers, Summaries, first_sentence


class TextsCase(absltest.TestCase):
    data = types.SimpleNamespace(encode_target=lambda text: [*map(ord, text), 0], decode=lambda ids: ''.join(map(chr, ids)))

    def called(self, method, pairs, outputs, tasks=()):
        """What a method of an evaluator returns for these outputs, whatever the model."""
        batches = types.SimpleNamespace(pairs=lambda: pairs, tasks=tasks)
        said = dict(zip((source for source, _ in pairs), outputs, strict=True))
        self.written = {}
        snapshot = types.SimpleNamespace(text=self.written.__setitem__, data=self.data)
        with mock.patch.object(texts, 'best_texts', lambda _, sources, strategy: [said[source] for source in sources]), (
                mock.patch.object(texts, 'require_translation', lambda *_: None)):
            return method(snapshot, batches)

    def measured(self, evaluator, pairs, outputs, tasks=()):
        """The numbers; asserts that they are those announced."""
        names, numbers = (self.called(method, pairs, outputs, tasks) for method in (evaluator.check, evaluator))
        self.assertEqual([*numbers], [*names])
        return numbers

    def compared(self, evaluator, pairs, first, second, tasks=()):
        """The paired tests of these outputs of two runs."""
        found = [self.called(evaluator.each, pairs, outputs, tasks) for outputs in (first, second)]
        return paired.compare(evaluator, *found, draws=300)


class AnswersTest(TextsCase):
    def test_each_task_has_its_own_numbers(self):
        pairs = [('a', 'yes'), ('b', 'no'), ('c', 'yes'), ('d', 'chat'), ('e', 'chien')]
        found = self.measured(Answers(), pairs, ['yes', 'yes', 'maybe', 'chat', 'chat'], ('x',) * 3 + ('y',) * 2)
        self.assertEqual(found, {'x_exact_match': 1 / 3, 'x_other': 1 / 3, 'y_exact_match': 0.5, 'y_other': 0.0,
                                 'x_pairs': 3, 'y_pairs': 2})
        self.assertEqual(self.measured(Answers(), pairs[:2], ['yes', 'no']), {'exact_match': 1.0, 'other': 0.0, 'pairs': 2})
        self.assertEqual(self.written['answers'].count('target:'), 2)

    def test_many_targets_are_no_classes(self):
        pairs = [(str(i), f'text {i}') for i in range(30)]
        self.assertEqual(self.measured(Answers(), pairs, ['text 3'] * 30), {'exact_match': 1 / 30, 'pairs': 30})
        limited = self.measured(Answers(limit=2), pairs, ['text 3'] * 30)
        self.assertEqual(limited, {'exact_match': 0, 'pairs': 2})  # no classes, whatever the limit

    def test_numbers_are_correlated(self):
        right, said = [0.2, 3.4, 5.0, 1.2, 2.2, 4.0], ['0.4', '3.0', 'many', '2.0', 'nan', '-inf']
        found = self.measured(Answers(), [(str(i), str(x)) for i, x in enumerate(right)], said)
        numbers = [0.4, 3.0, -1.0, 2.0, -1.0, -1.0]
        self.assertAlmostEqual(found['pearson'], np.corrcoef(right, numbers)[0, 1], places=12)
        self.assertAlmostEqual(found['spearman'], stats.spearmanr(right, numbers).statistic, places=12)
        same = self.measured(Answers(), [(str(i), str(x)) for i, x in enumerate(right)], ['1.0'] * 6)
        self.assertEqual((same['pearson'], same['spearman']), (0.0, 0.0))

    def test_targets_are_as_the_tokenizer_writes_them(self):
        """With one that lower-cases and writes spaces around signs, as WordPiece does."""
        self.data = types.SimpleNamespace(
            encode_target=self.data.encode_target,
            decode=lambda ids: ''.join(f' {one} ' if one in '_.' else one.lower() for one in map(chr, ids)).strip())
        pairs = [('a', 'Not_equal'), ('b', 'equal'), ('c', 'Not_equal')]
        found = self.measured(Answers(), pairs, ['not _ equal', 'equal', 'equal'])
        self.assertEqual(found, {'exact_match': 2 / 3, 'other': 0.0, 'pairs': 3})
        right, said = [0.2, 3.4, 5.0, 1.2], ['0 . 4', '3. 0', 'many', '2.0']
        found = self.measured(Answers(), [(str(i), str(x)) for i, x in enumerate(right)], said)
        self.assertAlmostEqual(found['pearson'], np.corrcoef(right, [0.4, 3.0, -1.0, 2.0])[0, 1], places=12)

    def test_limit_and_shown(self):
        pairs = [(f'{task}{i}', 'yes') for task in 'xy' for i in range(4)]
        found = self.measured(Answers(limit=2, shown=1), pairs, ['yes', 'yes', 'no', 'no'] * 2, ('x',) * 4 + ('y',) * 4)
        self.assertEqual(found, {'x_exact_match': 1.0, 'x_other': 0.0, 'y_exact_match': 1.0, 'y_other': 0.0,
                                 'x_pairs': 2, 'y_pairs': 2})
        self.assertEqual(self.written['answers'].count('source:'), 2)
        with self.assertRaisesRegex(ValueError, 'Answers has limit=-1'):
            self.measured(Answers(limit=-1), pairs, [''] * 8)

    def test_two_runs_are_compared_task_by_task(self):
        pairs = [(f'x{i}', ('no', 'yes')[i % 2]) for i in range(20)] + [(f'y{i}', str(i / 2)) for i in range(12)]
        right, tasks = [target for _, target in pairs], ('x',) * 20 + ('y',) * 12
        wrong = ['yes'] * 18 + ['maybe', 'no'] + right[20:26] + ['0'] * 6
        found = self.compared(Answers(), pairs, right, wrong, tasks)
        numbers = self.measured(Answers(), pairs, wrong, tasks)
        self.assertEqual({name: test['second'] for name, test in found.items()},
                         {name: x for name, x in numbers.items() if not name.endswith('pairs')})
        self.assertEqual({name: test['test'] for name, test in found.items()}, {
            'x_exact_match': 'mcnemar', 'x_other': 'mcnemar', 'y_exact_match': 'mcnemar', 'y_pearson': 'bootstrap',
            'y_spearman': 'bootstrap'})
        self.assertAlmostEqual(found['x_exact_match']['p'], 2 / 2 ** 11)  # 11 examples, all of which one run alone has right
        self.assertAlmostEqual(found['y_exact_match']['p'], 2 / 2 ** 6)
        self.assertEqual(found['x_other']['p'], 1)  # one example
        self.assertLess(found['y_spearman']['p'], 0.05)

    def test_a_task_of_which_no_example_is_drawn(self):
        pairs = [('a', '1'), ('b', '2'), ('c', '3'), ('d', 'yes')]
        found = self.called(Answers().each, pairs, ['1', '2', '3', 'yes'], ('x',) * 3 + ('y',))
        self.assertEqual(Answers().numbers({name: rows[3:] for name, rows in found.items()}),
                         {'x_exact_match': 0, 'x_pearson': 0, 'x_spearman': 0, 'y_exact_match': 1, 'y_other': 0})


class SummariesTest(TextsCase):
    def test_rouge_of_outputs_and_of_first_sentences(self):
        pairs = [('summarize: The cat sat. It slept.', 'the cat slept'), ('summarize: A dog\nran', 'a dog runs')]
        found = self.measured(Summaries(), pairs, ['the cat sat', 'a dog ran'])
        self.assertAlmostEqual(found['rouge1'], 100 * 2 / 3)  # of each two words of three; 'ran' is no stem of 'runs'
        self.assertAlmostEqual(found['rouge2'], 100 / 2)
        self.assertAlmostEqual(found['first_rouge1'], 100 * (2 / 3 + 2 * 1.0 * (2 / 3) / (1.0 + 2 / 3)) / 2)
        self.assertEqual(found['pairs'], 2)
        self.assertContainsSubset(Summaries.percent, found)
        each = metrics.rouge_scores(['it returns rows', 'none'], ['it returned row', 'other'])  # the same stems
        self.assertEqual({name: scores.tolist() for name, scores in each.items()},
                         {name: [100, 0] for name in ('rouge1', 'rouge2', 'rougeL')})

    def test_two_runs_are_compared(self):
        pairs = [(f'summarize: row {i}', f'a summary of row {i}') for i in range(10)]
        texts = [target if i % 3 else 'nothing' for i, (_, target) in enumerate(pairs)]
        found = self.compared(Summaries(limit=9), pairs, [target for _, target in pairs], texts)
        self.assertEqual([*found], ['rouge1', 'rouge2', 'rougeL'])
        for test in found.values():
            self.assertAlmostEqual(test['difference'], 100 / 3)
            self.assertTrue(0 <= test['low'] < 100 / 3 < test['high'] <= 100)

    def test_without_the_library_it_says_so(self):
        with mock.patch.dict('sys.modules', rouge_score=None), self.assertRaisesRegex(ValueError, 'ROUGE needs rouge-score'):
            self.measured(Summaries(), [('a', 'b')], ['c'])

    def test_first_sentences(self):
        for text, wanted in (('One. Two.', 'One.'), ('One? Two.', 'One?'), ('One\nTwo.', 'One'),
                             (' v1.5 is here', 'v1.5 is here')):
            self.assertEqual(first_sentence(text), wanted)


if __name__ == '__main__':
    absltest.main()
