"""eval.py --against: a paired test of two runs over the same examples."""

import json

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import base
from tests import experiments
from tests.data import tiny_tokenizers
from training import workdir
from transformer.evaluators.paired import mcnemar

SCORES = {'labelled': 'ClassScores', 'tagged': 'Entities', 'questions': 'AnswerScores'}


class CompareTest(experiments.TestCase):
    def two(self, kind):
        """Two runs on the same data: one in buckets, and one that has learnt less and has another tokenizer, and the columns of
        classes by number."""
        self.text.write_text(experiments.readings(kind))
        scores = base.evaluation(f'transformer.evaluators.reading:{SCORES[kind]}', split='valid')
        apart = self.folder / 'apart'
        apart.mkdir()
        other = str(tiny_tokenizers.word_piece(apart, 'mean key query'))
        halves = {'data.train': 'train[:60%]', 'data.valid': 'train[60%:]', 'data.length': 32, 'model.length': 32}
        halves |= {'evals.scores': scores} | ({'data.question_length': 8} if kind == 'questions' else {})
        runs = {'first': {'data.packing': 'buckets', 'train.steps': 200},
                'second': {'data.tokenizer': other, 'train.steps': 4, 'log.every_steps': 2}}
        if kind == 'labelled':
            runs['second'] |= {'data.columns': (1,), 'data.label': '2'}
        for name, changes in runs.items():
            config = experiments.tiny_reader(self.text, kind, **halves | changes)
            code, out = experiments.train(config, self.folder / name)
            self.assertEqual(code, 0, out)
        return self.folder / 'first', self.folder / 'second'

    def against(self, first, second, *arguments, code=0):
        done = experiments.call('eval', f'--workdir={first}', f'--against={second}', *arguments)
        self.assertEqual(done.code, code, done.err)
        if code:
            return done.err
        self.assertEqual(done.err, '')
        *_, said, row = done.out.splitlines()
        return said, json.loads(row)

    def test_classes(self):
        first, second = self.two('labelled')
        said, row = self.against(first, second, '--evaluator=scores')
        self.assertEqual((row['split'], row['step'], row['against_step'], row['examples']), ('valid', 200, 4, 80))
        numbers = [experiments.said(experiments.call('eval', f'--workdir={one}', '--evaluator=scores'))
                   for one in (first, second)]
        for name, test in row['tests'].items():
            self.assertAlmostEqual(test['first'], numbers[0][name], places=9)
            self.assertAlmostEqual(test['second'], numbers[1][name], places=9)
            self.assertAlmostEqual(test['difference'], numbers[0][name] - numbers[1][name], places=9)
        self.assertLess(row['tests']['accuracy']['p'], 0.01)
        self.assertIn(f'valid, 80 examples, {first} at step 200 - {second} at step 4: accuracy ', said)
        terms = self.against(first, second)[1]['tests']  # of the averages
        self.assertEqual({name: test['test'] for name, test in terms.items()}, {'loss': 'bootstrap', 'accuracy': 'mcnemar'})
        self.assertAlmostEqual(terms['accuracy']['p'], row['tests']['accuracy']['p'])
        right = []
        for run in (first, second):
            done = experiments.call('predict', f'--workdir={run}', stdin=''.join(
                line.split('\t')[0] + '\n' for line in self.text.read_text().splitlines()[120:]).encode())
            said = [line.split('\t')[0] for line in done.out.splitlines()]
            right.append(np.array([one == line.split('\t')[1] for one, line in
                                   zip(said, self.text.read_text().splitlines()[120:])]))
        self.assertAlmostEqual(mcnemar(*right), row['tests']['accuracy']['p'])
        _, same = self.against(first, first, '--evaluator=scores', f'--path={self.text}')
        self.assertEqual({test['p'] for test in same['tests'].values()}, {1.0})
        self.assertEqual((same['split'], same['examples']), (str(self.text), 200))

    @parameterized.parameters(('tagged', 80), ('questions', 80))
    @pytest.mark.slow
    def test_names_and_answers(self, kind, examples):
        first, second = self.two(kind)
        _, row = self.against(first, second, '--evaluator=scores')
        self.assertEqual(row['examples'], examples)
        self.assertGreater(row['tests']['f1']['difference'], 0)
        self.assertLess(row['tests']['f1']['p'], 0.05)

    def test_what_cannot_be_compared(self):
        first, other = self.trained(), self.folder / 'other'
        _, row = self.against(first, first)
        self.assertEqual(row['tests']['loss'] | {'first': 0, 'second': 0},
                         {'first': 0, 'second': 0, 'difference': 0, 'low': 0, 'high': 0, 'p': 1, 'test': 'bootstrap'})
        more = self.folder / 'more.txt'
        more.write_text(experiments.lines(90))
        code, out = experiments.train(experiments.tiny(more, **{'train.steps': 2}), other)
        self.assertEqual(code, 0, out)
        self.assertIn('has other data in valid than', self.against(first, other, code=1))
        self.assertIn('which looks at --input', self.against(first, other, '--attention=a.png', '--input=x', code=1))
        self.assertIn('nowhere', self.against(first, self.folder / 'nowhere', code=1))
        config = workdir.load_config(other)
        with config.unlocked():
            config.evals.sizes = base.evaluation('transformer.evaluators.activations:Activations', split='valid')
        (other / 'config.json').write_text(json.dumps(workdir.as_json(config)))
        self.assertIn("The evaluator 'sizes' scores no single examples, so two runs cannot be compared by it; those of this "
                      'run that do: valid.', self.against(other, other, '--evaluator=sizes', code=1))


if __name__ == '__main__':
    absltest.main()
