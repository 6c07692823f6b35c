"""eval.py: the numbers are those of a computation by hand, whatever the batches, and the workdir stays as it is."""

import json
import math
import shutil

import numpy as np
from absl.testing import absltest

from tests import experiments


class TextTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny(self.text), self.workdir)[0], 0)

    def evaluate(self, *arguments, workdir=None):
        done = experiments.call('eval', f'--workdir={workdir or self.workdir}', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return json.loads(done.out.splitlines()[-1])

    def test_changed_data_is_said(self):
        self.text.write_text(self.text.read_text() + 'one more\n')
        done = experiments.call('eval', f'--workdir={self.workdir}')
        self.assertEqual(done.code, 0)
        self.assertEqual(done.err, 'eval.py: the data of valid is not what it was when the run began; this measures what is '
                         'there now.\n')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['split'], 'valid')
        self.evaluate('--split=test')  # was never measured, so nothing is known of it

    def with_config(self, name, **changes):
        """A copy of the workdir with another config.json."""
        copy = self.folder / name
        shutil.copytree(self.workdir, copy)
        config = json.loads((copy / 'config.json').read_text())
        for field, value in changes.items():
            *parents, last = field.split('.')
            node = config
            for parent in parents:
                node = node[parent]
            node[last] = value
        (copy / 'config.json').write_text(json.dumps(config))
        return copy

    def by_hand(self, documents, context, stride):
        """(sum of -log p, tokens) over the windows of every document, one at a time and unpacked."""
        from training import run as runs

        snapshot = runs.load(self.workdir)
        total, count = 0.0, 0
        for text in documents:
            ids = np.array([snapshot.data.end, *snapshot.data.encode(text), snapshot.data.end])
            scored = 0
            for start in range(0, len(ids) - 1, stride):
                inputs, targets = ids[start:start + context][:len(ids) - 1 - start], ids[start + 1:start + context + 1]
                padded = np.zeros(context, np.int32)
                padded[:len(inputs)] = inputs
                logits = np.asarray(snapshot.apply(inputs=padded[None])['logits'][0], np.float64)
                losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(context), np.resize(targets, context)]
                total += losses[scored - start:len(inputs)].sum()
                count += len(inputs) - (scored - start)
                scored = start + len(inputs)
                if scored == len(ids) - 1:
                    break
        return total, count

    def documents(self):
        return self.text.read_text().splitlines()[72:76]  # 90 % to 95 % of 80 lines

    def test_perplexity_counts_every_token_once(self):
        row = self.evaluate()
        total, count = self.by_hand(self.documents(), 16, 16)
        self.assertEqual(row['weight'], count)
        self.assertEqual(count, sum(len(line) + 1 for line in self.documents()))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)
        self.assertAlmostEqual(row['perplexity'], math.exp(total / count), delta=1e-3)
        self.assertAlmostEqual(row['bits_per_byte'], total / math.log(2) / len('\n'.join(self.documents()) + '\n'), delta=1e-4)
        self.assertEqual((row['split'], row['step'], row['context'], row['stride']), ('valid', 7, 16, 16))
        self.assertEqual(row['loss'], experiments.rows(self.workdir, 'valid')[-1]['loss'])

    def test_stride_gives_more_context_to_the_same_tokens(self):
        row = self.evaluate(workdir=self.with_config('strided', **{'evals.valid.stride': 4, 'evals.valid.context': 12}))
        total, count = self.by_hand(self.documents(), 12, 4)
        self.assertEqual((row['context'], row['stride'], row['weight']), (12, 4, count))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)

    def test_batch_size_and_packing_change_nothing(self):
        row = self.evaluate()
        for changes in ({'data.batch_size': 6}, {'data.batch_size': 2}, {'data.packing': 'none'}):
            other = self.evaluate(workdir=self.with_config(f'{changes}', **changes))
            self.assertEqual(other['weight'], row['weight'])
            self.assertAlmostEqual(other['loss'], row['loss'], delta=1e-6)

    def test_path_scores_files(self):
        files = [self.folder / 'a.txt', self.folder / 'b.txt']
        files[0].write_text('key query\nvalue mask head block norm token\n')
        files[1].write_text('row batch')
        row = self.evaluate(*(f'--path={file}' for file in files))
        total, count = self.by_hand('key query\nvalue mask head block norm token\nrow batch'.splitlines(), 16, 16)
        self.assertEqual((row['split'], row['weight']), (' '.join(map(str, files)), count))
        self.assertAlmostEqual(row['loss'], total / count, delta=1e-5)

    def test_splits_and_steps(self):
        documents = self.text.read_text().splitlines()
        for split, part in (('test', documents[76:]), ('train[:5%]', documents[:4]), ('all', documents)):
            row = self.evaluate(f'--split={split}')
            self.assertEqual((row['split'], row['weight']), (split, sum(len(line) + 1 for line in part)))
        steps = [self.evaluate(f'--step={step}') for step in ('3', '6', 'last')]
        self.assertEqual([row['step'] for row in steps], [3, 6, 7])
        self.assertLen({row['loss'] for row in steps}, 3)

    def test_writes_nothing_and_needs_no_training_text(self):
        def state():
            return {path: path.stat().st_mtime_ns for path in self.workdir.rglob('*')}
        before = state()
        self.evaluate()
        self.assertEqual(state(), before)
        (self.folder / 'new.txt').write_text('key query\n')
        self.text.unlink()
        self.evaluate(f'--path={self.folder / "new.txt"}')
        self.assertEqual(state(), before)


    def test_what_is_to_be_scored_must_be_clear(self):
        samples = {'evaluator': 'transformer.evaluators:Continuations', 'split': 'valid', 'every_steps': 0, 'prompt': 'key',
                   'count': 1, 'tokens': 1, 'strategy': 'Greedy()'}
        workdir = self.with_config('sampled', **{'evals.samples': samples})
        for arguments, sentence in (
                (['--split=valid', f'--path={self.text}'], '--split and --path were both given; give --split for data of the '
                 'run, or --path for files.'),
                (['--split='], "--split is empty; give valid, test, train or an expression such as 'train[:1%]'."),
                (['--path='], '--path is empty; give it the path of a file to score, or leave it out.'),
                (['--split=samples'], "The evaluator 'samples' measures no loss; those of this run that measure one: valid.")):
            with self.subTest(arguments=arguments):
                done = experiments.call('eval', f'--workdir={workdir}', *arguments)
                self.assertEqual((done.code, done.out, done.err), (1, '', f'eval.py: {sentence}\n'))


class ImagesTest(experiments.TestCase):

    def test_split_and_files_agree(self):
        workdir = self.folder / 'run'
        self.assertEqual(experiments.train(experiments.tiny_images(), workdir)[0], 0)
        experiments.save_digits(self.folder / 'images', range(64, 74))
        rows = [json.loads(experiments.call('eval', f'--workdir={workdir}', *argument).out.splitlines()[-1])
                for argument in ([], [f'--path={self.folder / "images"}'])]
        self.assertEqual([row['weight'] for row in rows], [10, 10])
        self.assertAlmostEqual(rows[0]['loss'], rows[1]['loss'], delta=1e-2)  # 17 levels of grey became 256


if __name__ == '__main__':
    absltest.main()
