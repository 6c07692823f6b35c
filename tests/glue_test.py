"""configs/glue.py: every task in the format that GLUE publishes, from small files, with its metrics and its submission."""

import json
import types
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import glue
from data.text.labelled import Labelled
from tests import experiments
from training.config import resolve
from transformer.readers import classes, whole

WORDS = experiments.WORDS
CLASSES = 'entailment', 'not_entailment'
NLI = 'entailment', 'neutral', 'contradiction'


def sentence(number, part=0):
    return ' '.join(WORDS[(number * (part + 3) + i) % len(WORDS)] for i in range(2 + (number + part) % 4))


def table(*names, rows=(), header=True):
    return ('\t'.join(names) + '\n') * header + ''.join('\t'.join(map(str, row)) + '\n' for row in rows)


def files(task, count=24):
    """{name: text} of the files of a task, as GLUE publishes them: {train.tsv, dev.tsv, test.tsv} and the labels of train."""
    one, two, label = sentence, lambda n: sentence(n, 1), lambda n: n % 2
    number = range(count)
    if task == 'cola':
        rows = [('gj04', label(n), '*' if label(n) else '', one(n)) for n in number]
        return {'train.tsv': table(rows=rows, header=False), 'dev.tsv': table(rows=rows[:5], header=False),
                'test.tsv': table('index', 'sentence', rows=[(n, one(n)) for n in range(5)])}
    if task == 'sst2':
        names, rows = ('sentence', 'label'), [(one(n) + ' ', label(n)) for n in number]
    elif task == 'mrpc':
        names = ('\ufeffQuality', '#1 ID', '#2 ID', '#1 String', '#2 String')
        rows = [(label(n), 70 + n, 90 + n, f'{one(n)} "{two(n)}', two(n)) for n in number]  # a quote that is not closed
    elif task == 'stsb':
        names = ('index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1', 'sentence2', 'score')
        rows = [(n, 'main-news', 'headlines', 2012, n, 'none', 'none', one(n), two(n), f'{n % 6}.{n % 10}00') for n in number]
    elif task == 'qqp':
        names = ('id', 'qid1', 'qid2', 'question1', 'question2', 'is_duplicate')
        rows = [(n, 2 * n, 2 * n + 1, one(n), two(n), label(n)) for n in number]
    elif task == 'mnli':
        names = ('index', 'promptID', 'pairID', 'genre', 'sentence1_binary_parse', 'sentence2_binary_parse', 'sentence1_parse',
                 'sentence2_parse', 'sentence1', 'sentence2', 'label1', 'gold_label')
        rows = [(n, 31 + n, f'{n}n', 'fiction', '( a )', '( b )', '(ROOT (a))', '(ROOT (b))', one(n), two(n), NLI[n % 3],
                 NLI[n % 3]) for n in number]
    elif task == 'qnli':
        names, rows = ('index', 'question', 'sentence', 'label'), [(n, one(n), two(n), CLASSES[label(n)]) for n in number]
    else:
        classes = {'rte': CLASSES, 'wnli': ('0', '1')}[task]
        names, rows = ('index', 'sentence1', 'sentence2', 'label'), [(n, one(n), two(n), classes[label(n)]) for n in number]
    found = {'train.tsv': table(*names, rows=rows)}
    if task == 'qqp':
        found['train.tsv'] += '133\t5\t6\tbroken\n134\t7\t8\tkey\t\t0\n'
    labels = 'label', 'score', 'is_duplicate', 'label1', 'gold_label'
    shown = [column for column, name in enumerate(names) if name not in labels]
    test = [[row[column] for column in shown] for row in rows[:5]]
    names_of_test = [names[column] for column in shown]
    if task in ('sst2', 'mrpc'):  # whose test file has an index, and its training file has none
        test = [(n, *(row if task == 'sst2' else row[1:])) for n, row in enumerate(test)]
        names_of_test = ['index', *(names_of_test if task == 'sst2' else names_of_test[1:])]
    for ending in ('_matched', '_mismatched') if task == 'mnli' else ('',):
        extra = [f'label{i}' for i in range(2, 6)] if task == 'mnli' else []  # the labels of five people
        dev = [(*row[:-1], *['x'] * len(extra), row[-1]) for row in rows[:5]]
        found[f'dev{ending}.tsv'] = table(*names[:-1], *extra, names[-1], rows=dev)
        found[f'test{ending}.tsv'] = table(*names_of_test, rows=test)
    return found


# {task: {name: text}}: files that lie beside those of a task and are none of its parts.
OTHERS = {
    'cola': {f'original/{kind}/{name}.tsv': 'gj04\t1\t\tanother sentence\n' for kind in ('raw', 'tokenized')
             for name in ('in_domain_train', 'in_domain_dev', 'out_of_domain_dev')},
    'mrpc': {'msr_paraphrase_train.txt': table('Quality', '#1 ID', '#2 ID', '#1 String', '#2 String',
                                               rows=[(1, 1, 2, 'another', 'pair')]),
             'dev_ids.tsv': '1000\t2000\n'},
    'stsb': {f'original/sts-{name}.tsv': 'main-news\tMSRpar\t2012\t1\t5.0\tone\tanother\n' for name in ('train', 'dev')},
    'mnli': {f'original/multinli_1.0_{name}.txt': 'gold_label\tsentence1\tsentence2\nneutral\tone\tanother\n'
             for name in ('train', 'dev_matched', 'dev_mismatched')}}


class GlueTest(experiments.TestCase):
    def write(self, task):
        folder = self.folder / task
        folder.mkdir()
        for name, text in (files(task) | OTHERS.get(task, {})).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    def data(self, workdir, task, **changes):
        config = experiments.changed(glue.get_config(f'{task},{workdir}'), **{'data.batch_size': 4} | changes)
        return config, resolve.construct(config.data, 'pipeline')

    @parameterized.parameters(*glue.TASKS)
    def test_reads_the_published_form(self, task):
        config, data = self.data(self.trained(), task, **{'data.path': str(self.write(task))})
        self.assertIsInstance(data, Labelled)
        found = data.part('train').examples
        self.assertLen(found, 24)
        self.assertEqual(found[3].texts[0].split('"')[0].strip(), sentence(3))
        self.assertLen(found[3].texts, 1 if task in ('cola', 'sst2') else 2)
        if len(found[3].texts) == 2:
            self.assertEqual(found[3].texts[1], sentence(3, 1))
        wanted = {'stsb': 3.3, 'mnli': NLI[0], 'qnli': CLASSES[1], 'rte': CLASSES[1]}.get(task, '1')
        self.assertEqual(found[3].label, wanted)
        self.assertEqual([example.label for example in data.part('valid').examples], [example.label for example in found[:5]])
        self.assertEqual(config.evals.scores.evaluator.rpartition(':')[2], 'Correlation' if task == 'stsb' else 'ClassScores')
        if task == 'mnli':
            self.assertLen(data.part(config.evals.mismatched.split).examples, 5)
        said = 'without 2 incomplete rows' in data.open(None, self.folder / 'run').describe()
        self.assertEqual(said, task == 'qqp')

    @parameterized.parameters(*(('mrpc', {'f1', 'accuracy'}), ('stsb', {'pearson', 'spearman'}), ('mnli', {'accuracy'})))
    @pytest.mark.slow
    def test_trains_and_writes_what_is_submitted(self, task, metrics):
        workdir, folder = self.folder / task / 'run', self.write(task)
        config, _ = self.data(self.trained(), task, **{
            'data.path': str(folder), 'train.steps': 2, 'log.every_steps': 1, 'mesh.data': 1,
            'optimizer.schedule.warmup_steps': 1})
        code, said = experiments.train(config, workdir)
        self.assertEqual(code, 0, said)
        self.assertContainsSubset(metrics, experiments.rows(workdir, 'scores')[-1])
        self.assertEqual(bool(experiments.rows(workdir, 'mismatched')), task == 'mnli')
        test = folder / ('test_matched.tsv' if task == 'mnli' else 'test.tsv')
        done = experiments.call('predict', f'--workdir={workdir}', f'--input={test}')
        self.assertEqual(done.code, 0, done.err)
        head, *lines = done.out.splitlines()
        self.assertEqual(head, 'index\tprediction')
        self.assertEqual([line.split('\t')[0] for line in lines], list('01234'))
        for _, prediction in (line.split('\t') for line in lines):
            self.assertIn(prediction, {'mrpc': '01', 'mnli': NLI}.get(task, [prediction]))
            _ = float(prediction) if task == 'stsb' else None
        line = f'{sentence(0)}\t{sentence(0, 1)}\n'.encode()
        plain = experiments.call('predict', f'--workdir={workdir}', '--json', stdin=line)
        self.assertIn('text', json.loads(plain.out))  # a line that is no table

    def test_what_is_no_task(self):
        run = self.trained()
        for variant, message in ((f'mprc,{run}', "write TASK,WORKDIR, such as mrpc,runs/bert: did you mean 'mrpc'"),
                                 ('mrpc', r"no variant 'mrpc' .* such as mrpc,runs/bert: the workdir is missing\."),
                                 (f'MPRC,{run}', "did you mean 'mrpc'"),
                                 (f'ax,{run}', 'ax is for tests alone; train mnli'),
                                 (f'super_glue/rte,{run}', 'glue/ before the task is for TFDS')):
            with self.assertRaisesRegex(ValueError, message):
                glue.get_config(variant)

    def test_names_of_tfds(self):
        config = glue.get_config(f'glue/mnli,{self.trained()}')
        self.assertEqual((config.data.name, config.data.path, config.data.valid, config.evals.mismatched.split),
                         ('glue/mnli', '', 'validation_matched', 'validation_mismatched'))
        self.assertEqual(glue.get_config(f'glue/mrpc,{self.folder / "run"}').evals.scores.positive, 'equivalent')
        self.assertEqual(glue.get_config(f'mrpc,{self.folder / "run"}').evals.scores.positive, '1')
        self.assertEqual(glue.get_config(f'glue/cola,{self.folder / "run"}').data.columns, ())

    @parameterized.parameters(
        ('glue/cola', ('unacceptable', 'acceptable'), '01'), ('glue/sst2', ('negative', 'positive'), '01'),
        ('glue/mrpc', ('not_equivalent', 'equivalent'), '01'), ('glue/qqp', ('not_duplicate', 'duplicate'), '01'),
        ('glue/wnli', ('not_entailment', 'entailment'), '01'), ('glue/rte', CLASSES, CLASSES), ('glue/qnli', CLASSES, CLASSES),
        ('glue/mnli', NLI, NLI), ('mrpc', ('0', '1'), '01'))
    def test_classes_are_submitted_as_glue_takes_them(self, task, names, wanted):
        folder = self.folder / 'texts'
        folder.mkdir()
        rows = [(sentence(n), names[n % len(names)]) for n in range(24)]
        (folder / 'train.tsv').write_text(table('sentence', 'label', rows=rows))
        _, data = self.data(self.trained(), task, **{
            'data.path': str(folder), 'data.name': '', 'data.train': 'all', 'data.valid': ''})
        opened = data.open(None)
        logits = [{'logits': np.float32([name == one for one in opened.classes])} for name in names]
        test = ['index\tsentence', *(f'{n}\t{sentence(n)}' for n in range(len(names)))]
        with mock.patch.object(whole, 'outputs', lambda *_: iter(logits)):
            found = [*classes.SubmittedClasses().answers(types.SimpleNamespace(data=opened), test, 'test.tsv')]
        self.assertEqual([line for line, _ in found[1:]], [f'{n}\t{one}' for n, one in enumerate(wanted)])
        self.assertEqual([details['class'] for _, details in found[1:]], [*names])

    def test_a_table_that_cannot_be_answered_gives_no_header(self):
        _, data = self.data(self.trained(), 'sst2', **{'data.path': str(self.write('sst2'))})
        given = types.SimpleNamespace(data=data.open(None))
        answers = classes.SubmittedClasses().answers(given, ['index\tsentence', '0\tkey row'], 'test.tsv')
        with mock.patch.object(whole, 'outputs', side_effect=ValueError('no logits')), self.assertRaisesRegex(ValueError, 'no'):
            next(answers)

    @parameterized.parameters(
        ('sst2', 'sentence', ('key row', '', ' '), [7, 0, 0]),
        ('qqp', 'question1\tquestion2', ('key row\tmask', 'key row\t', '\t'), [11, 7, 0]))
    def test_an_empty_text_is_predicted_too(self, task, columns, texts, sizes):
        """A submission has a line for each row; the tokens here are characters."""
        _, data = self.data(self.trained(), task, **{'data.path': str(self.write(task))})
        opened, seen = data.open(None), []

        def outputs(snapshot, batches, names):
            for batch in batches:
                seen.extend(batch['segments'].sum(1)[batch['example_weights'] > 0].tolist())
            return iter([{'logits': np.float32([0, 1])}] * len(seen))

        answers = lambda *lines: [*classes.SubmittedClasses().answers(types.SimpleNamespace(data=opened), lines, 'test.tsv')]
        with mock.patch.object(whole, 'outputs', outputs):
            found = answers(f'id\t{columns}', *(f'{number}\t{text}' for number, text in enumerate(texts)), '')
        self.assertEqual([line for line, _ in found[1:]], ['0\t1', '1\t1', '2\t1'])
        self.assertEqual(seen, sizes)
        with self.assertRaisesRegex(ValueError, 'is not what this run classifies'):
            answers('key row\t')


if __name__ == '__main__':
    absltest.main()
