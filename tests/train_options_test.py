"""Fields of a config that change what a run does, seen from outside."""

import json
import math
import os
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import base, classify
from tests import experiments


class OptionsTest(experiments.TestCase):

    def config(self, **changes):
        return experiments.tiny(self.text, **changes)

    def test_nonfinite_loss_stops_with_the_step_and_the_last_checkpoint_stays(self):
        workdir = self.folder / 'run'
        changes = {'optimizer.clip': 0.0, 'checkpoint.every_steps': 1, 'optimizer.learning_rate': 1e30}
        with self.assertRaisesRegex(ValueError, r'The loss is (nan|inf) at step 2 and these gradients are not finite: '
                                    r'.*block_0.*; start in another --workdir with a lower optimizer.learning_rate'):
            experiments.train(self.config(**changes), workdir)
        self.assertEqual(experiments.steps(workdir), [1])
        self.assertNotIn(b'nan', experiments.metrics(workdir))

    @pytest.mark.slow
    def test_nonfinite_updates_can_be_skipped(self):
        workdir = self.folder / 'run'
        changes = {'optimizer.clip': 0.0, 'optimizer.learning_rate': 1e30, 'train.nonfinite': 'skip'}
        code, out = experiments.train(self.config(**changes), workdir)
        self.assertEqual(code, 0, out)
        last = experiments.rows(workdir, 'train')[-1]
        self.assertEqual(last['skipped'], 7)  # the first gradient is finite, its update is not
        self.assertTrue(math.isnan(float(last['loss'])), last)  # nothing was learnt in it: no loss, rather than none of 0

    @pytest.mark.slow
    def test_the_gradient_of_every_layer_by_flag(self):
        from tests.training.report import report_test

        workdir = self.folder / 'run'
        code, out = experiments.train(self.config(**{'log.gradients': True}), workdir)
        self.assertEqual(code, 0, out)
        row = experiments.rows(workdir, 'train')[0]
        norms = {name: value for name, value in row.items() if name.startswith('grad_norm/')}
        self.assertEqual(set(norms), {f'grad_norm/{group}' for group in ('tokens', 'positions', 'block_0', 'norm')})
        self.assertAlmostEqual(math.hypot(*norms.values()), row['grad_norm'], places=5)
        (step, value), *_ = report_test.values(workdir, 'train/grad_norm/block_0')
        self.assertEqual(step, 2)
        self.assertAlmostEqual(value.simple_value, norms['grad_norm/block_0'], places=6)
        experiments.train(self.config(), self.folder / 'without')
        self.assertNotIn(b'grad_norm/', experiments.metrics(self.folder / 'without'))

    @parameterized.parameters(('loss', min, 7), ('accuracy', max, 8))
    def test_keep_and_best(self, metric, choose, warmup):
        workdir = self.folder / 'run'
        code, out = experiments.train(self.config(**{
            'optimizer.schedule.warmup_steps': warmup, 'checkpoint.every_steps': 1, 'checkpoint.keep': 2,
            'checkpoint.best': f'valid/{metric}', 'evals.valid.every_steps': 2}), workdir)
        self.assertEqual(code, 0)
        self.assertEqual('warms up for 8 and does not reach its peak' in out, warmup == 8, out)
        rows = experiments.rows(workdir, 'valid')
        best = choose(rows, key=lambda row: row[metric])['step']
        self.assertEqual(experiments.steps(workdir), sorted({best, 6, 7}))
        for step, expected in (('best', best), ('last', 7), ('6', 6)):
            done = experiments.call('eval', f'--workdir={workdir}', f'--step={step}')
            self.assertEqual(json.loads(done.out.splitlines()[-1])['step'], expected)

    @pytest.mark.slow
    def test_what_is_evaluated_is_the_average(self):
        plain, averaged = self.folder / 'plain', self.folder / 'averaged'
        for workdir, decay in ((plain, 0.0), (averaged, 0.5)):
            experiments.train(self.config(**{'optimizer.average_decay': decay}), workdir)
        of = lambda workdir, split: [row['loss'] for row in experiments.rows(workdir, split)]
        self.assertEqual(of(plain, 'train'), of(averaged, 'train'))
        self.assertNotEqual(of(plain, 'valid')[-1], of(averaged, 'valid')[-1])
        done = experiments.call('eval', f'--workdir={averaged}')
        self.assertAlmostEqual(json.loads(done.out.splitlines()[-1])['loss'], of(averaged, 'valid')[-1], delta=1e-6)

    @pytest.mark.slow
    def test_smoothing_shows_the_cross_entropy_beside_the_loss(self):
        workdir = self.folder / 'run'
        experiments.train(self.config(**{'task.label_smoothing': 0.1, 'task.z_loss': 0.01, 'train.steps': 2}), workdir)
        for split in ('train', 'valid'):
            row = experiments.rows(workdir, split)[-1]
            total = 0.9 * row['cross_entropy'] + 0.1 * row['uniform'] + 0.01 * row['log_z_squared']
            self.assertAlmostEqual(row['loss'], total, places=5)
        self.assertAlmostEqual(row['perplexity'], math.exp(row['cross_entropy']), places=4)

    @pytest.mark.slow
    def test_masked_words_that_are_not_learnt_are_told_once(self):
        self.text.write_text(experiments.readings('masked'))
        config = experiments.tiny_reader(self.text, 'masked', **{
            'optimizer.learning_rate': 1e-9, 'train.steps': 8, 'log.every_steps': 1})
        with mock.patch('transformer.tasks.masked._PATIENCE', 4):
            code, out = experiments.train(config, self.folder / 'run')
        self.assertEqual(code, 0, out)
        self.assertRegex(out, r'; unigram entropy \d\.\d\d, \d\.\d\d with the words that the noise leaves\n')
        self.assertLen(re.findall('^CAUTION: after 5 steps the loss of masked words', out, re.MULTILINE), 1)
        self.assertEqual(out.count('CAUTION'), 1)

    def test_another_optimizer_by_flag(self):
        changes = {'train.steps': 2, 'optimizer.name': 'training.optimizer:Muon', 'optimizer.average_decay': 0.0}
        code, out = experiments.train(self.config(**changes), self.folder / 'run')
        self.assertEqual(code, 0, out)
        self.assertTrue([name for name in experiments.bits(self.folder / 'run') if "['muon']" in name])

    def test_best_of_an_unknown_metric(self):
        with self.assertRaisesRegex(ValueError, "checkpoint.best is 'valid/los', but valid measures loss, accuracy, "):
            experiments.train(self.config(**{'checkpoint.best': 'valid/los'}), self.folder / 'run')

    @pytest.mark.slow
    def test_profile(self):
        workdir = self.folder / 'run'
        code, _ = experiments.train(self.config(**{'train.steps': 4, 'profile.steps': '2:3'}), workdir)
        self.assertEqual(code, 0)
        self.assertTrue(list((workdir / 'profile').rglob('*.xplane.pb')))

    def test_init_from_copies_parameters_and_tokenizer(self):
        source, workdir, other = self.folder / 'source', self.folder / 'run', self.folder / 'other.txt'
        experiments.train(self.config(**{'train.steps': 2}), source)
        other.write_text(experiments.lines(60).replace('q', 'k'))  # learnt from this, the vocabulary would be smaller
        changes = {'train.steps': 1, 'optimizer.learning_rate': 0.0, 'init_from': str(source), 'mesh.data': 1,
                   'data.path': str(other)}
        code, out = experiments.train(self.config(**changes, **{
            'init_rules': (('positions/.*', 'fresh'), ('.*', 'keep'))}), workdir)
        self.assertEqual(code, 0, out)
        self.assertIn(f'parameters from {source}', out)
        ours, theirs = experiments.bits(workdir), experiments.bits(source)
        of = lambda name: name.replace('params', 'average', 1)  # what is used of a run is its average
        same = {name for name in ours if name.startswith("['params']") and ours[name] == theirs[of(name)]}
        self.assertEqual({name for name in ours if name.startswith("['params']")} - same,
                         {"['params']['positions']['embedding']"})
        self.assertEqual({name for name in ours if name.startswith("['params']") and ours[name] != ours[of(name)]}, set())
        self.assertEqual((workdir / 'tokenizer.json').read_bytes(), (source / 'tokenizer.json').read_bytes())

    @pytest.mark.slow
    def test_init_from_in_the_home_folder_takes_its_tokenizer_too(self):
        source = self.folder / 'source'
        experiments.train(self.config(**{'train.steps': 1}), source)
        other = self.folder / 'other.txt'  # as many characters as the text, but others
        other.write_text(self.text.read_text().translate({ord(c): ord(c.upper()) for c in 'abcdefghijklmnopqrstuvwxyz'}))
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            changes = {'train.steps': 1, 'init_from': '~/source', 'data.path': str(other)}
            experiments.train(self.config(**changes), self.folder / 'run')
            self.assertEqual(classify.get_config('~/source').model.layers, 1)
        self.assertEqual(*((folder / 'tokenizer.json').read_text() for folder in (source, self.folder / 'run')))

    def test_init_from_refuses_another_tokenizer(self):
        source = self.folder / 'source'
        experiments.train(self.config(**{'train.steps': 1}), source)
        with self.assertRaisesRegex(ValueError, r"tokenizer='Byte\(\)' is not the tokenizer of .*: Char\(\) with 2[0-9] ids"):
            experiments.train(self.config(**{'init_from': str(source), 'data.tokenizer': 'Byte()'}), self.folder / 'run')

    @pytest.mark.slow
    def test_a_run_goes_on_when_what_it_started_from_is_gone(self):
        source, workdir = self.folder / 'source', self.folder / 'run'
        experiments.train(self.config(**{'train.steps': 1}), source)
        experiments.train(self.config(**{'train.steps': 2, 'init_from': str(source)}), workdir)
        shutil.rmtree(source)
        for steps, said in ((2, 'finished at step 2'), (3, 'resumed from step 2')):
            code, out = experiments.train(self.config(**{'train.steps': steps, 'init_from': str(source)}), workdir)
            self.assertEqual(code, 0, out)
            self.assertIn(said, out)

    @pytest.mark.slow
    def test_init_from_needs_what_the_model_needs(self):
        source = self.folder / 'source'
        experiments.train(self.config(**{'train.steps': 2}), source)
        with self.assertRaisesRegex(ValueError, "has nothing for block_1/.*, but the model needs .*'fresh' in init_rules"):
            experiments.train(self.config(**{'model.layers': 2, 'init_from': str(source)}), self.folder / 'run')
        self.assertFalse((self.folder / 'run').exists())

    @pytest.mark.slow
    def test_init_from_resizes_positions_for_images_of_another_size(self):
        from training import mesh
        from training import run as runs

        source = self.folder / 'source'
        experiments.train(experiments.tiny_images(), source)
        larger = experiments.changed(experiments.tiny_images(), **{'data.size': 16, 'init_from': str(source)})
        run = runs.build(larger, mesh.make(1))
        ours, theirs = run.init_from(source)[0].params, runs.load(source).params
        self.assertEqual((theirs['positions']['embedding'].shape[0], ours['positions']['embedding'].shape[0]), (5, 17))
        np.testing.assert_array_equal(ours['positions']['embedding'][0], theirs['positions']['embedding'][0])
        np.testing.assert_array_equal(ours['patches']['kernel'], theirs['patches']['kernel'])
        code, out = experiments.train(larger, self.folder / 'run')
        self.assertEqual(code, 0, out)
        with self.assertRaisesRegex(ValueError, 'has .*for patches/kernel, but the model needs'):
            experiments.train(experiments.changed(larger, **{'model.patch': 2}), self.folder / 'other')

    @pytest.mark.slow
    def test_rows_of_several_lengths_resume_as_they_went_on(self):
        self.text.write_text(experiments.pairs(80))
        config = lambda **more: experiments.tiny_pairs(self.text, **{
            'data.packing': 'buckets', 'data.batch_size': 4, 'train.steps': 9, 'log.every_steps': 1} | more)
        whole, parts = self.folder / 'whole', self.folder / 'parts'
        for steps, workdir in ((9, whole), (4, parts), (9, parts)):
            code, out = experiments.train(config(**{'train.steps': steps}), workdir)
            self.assertEqual(code, 0, out)
            longest = re.search('compiled; (.*) GFLOP', out)[1]
        self.assertEqual([row['loss'] for row in experiments.rows(parts, 'train')],
                         [row['loss'] for row in experiments.rows(whole, 'train')])
        self.assertEqual(experiments.bits(parts), experiments.bits(whole))
        timing = [json.loads(line) for line in (whole / 'timing.jsonl').read_text().splitlines()]
        work = [round(row['flops_per_s'] * row['step_ms'] / 1e3) for row in timing]
        self.assertGreater(len(set(work)), 1)  # each step has the operations of its own length
        self.assertEqual(f'{max(work) / 1e9:,.3g}', longest)
        with self.assertRaisesRegex(ValueError, "train.dispatch=2 does steps with batches of one shape, but data.packing"):
            experiments.train(config(**{'train.dispatch': 2, 'train.steps': 8, 'log.every_steps': 2}), self.folder / 'other')

    @parameterized.parameters('tagged', 'questions')
    @pytest.mark.slow
    def test_texts_in_buckets_are_measured_as_without(self, kind):
        self.text.write_text(experiments.readings(kind))
        evaluator = {'tagged': 'Entities', 'questions': 'AnswerScores'}[kind]
        scores = base.evaluation(f'transformer.evaluators.reading:{evaluator}', split='valid')
        config = experiments.tiny_reader(self.text, kind, **{'data.packing': 'buckets', 'evals.scores': scores})
        workdir = self.folder / 'run'
        code, out = experiments.train(config, workdir)
        self.assertEqual(code, 0, out)
        rows = [experiments.said(experiments.call('eval', f'--workdir={workdir}', f'--evaluator={name}'))
                for name in ('valid', 'scores')]
        self.assertGreater(rows[1]['f1'], 0)
        path = workdir / 'config.json'
        path.write_text(path.read_text().replace('"buckets"', '"none"'))
        for name, row in zip(('valid', 'scores'), rows):
            whole = experiments.said(experiments.call('eval', f'--workdir={workdir}', f'--evaluator={name}'))
            self.assertEqual(whole.keys(), row.keys())
            for key in whole.keys() - {'split'}:
                self.assertAlmostEqual(whole[key], row[key], places=4, msg=key)

    def test_attention_that_mixes_documents_is_given_one_a_row(self):
        bert = base.part('transformer.models.bert:Bert', layers=1, heads=2, width=8, length=16, head='NextWords()',
                         attention='Nystrom(landmarks=4)')
        for packing in ('first_fit', 'concat'):
            with self.assertRaisesRegex(ValueError, f"cannot separate .*data.packing='{packing}'; set data.packing='none', or"):
                experiments.train(experiments.tiny(self.text, model=bert, **{'data.packing': packing}), self.folder / 'run')
        with self.assertRaisesRegex(ValueError, 'has no causal form'):  # whatever the packing
            experiments.train(experiments.tiny(self.text, **{'model.attention': 'Nystrom(landmarks=4)'}), self.folder / 'run')

    def test_a_recurrent_model_is_given_one_pair_a_row(self):
        self.text.write_text(experiments.pairs(80))
        recurrent = base.part('transformer.models.bahdanau:RecurrentEncoderDecoder', source_length=12, length=12, width=8)
        with self.assertRaisesRegex(ValueError, "cannot separate documents that share a row, as with data.packing='first_fit'"):
            experiments.train(experiments.tiny_pairs(self.text, model=recurrent), self.folder / 'run')

    @pytest.mark.slow
    def test_several_steps_per_dispatch_change_nothing(self):
        even, work = {'train.steps': 8, 'checkpoint.every_steps': 4, 'optimizer.average_decay': 0.0}, set()
        for count in (1, 2):
            code, out = experiments.train(self.config(**even, **{'train.dispatch': count}), self.folder / str(count))
            self.assertEqual(code, 0, out)
            work.add(re.search('compiled; .* GFLOP', out)[0])
        self.assertLen(work, 1)  # of a step
        self.assertEqual(experiments.steps(self.folder / '1'), experiments.steps(self.folder / '2'))
        for split, wanted in (('train', [2, 4, 6, 8]), ('valid', [4, 8])):
            one, two = (experiments.rows(self.folder / name, split) for name in '12')
            self.assertEqual([row['step'] for row in two], wanted)
            for a, b in zip(one, two, strict=True):
                for name in a.keys() - {'split'}:
                    self.assertAlmostEqual(a[name], b[name], delta=1e-5 * (1 + abs(a[name])), msg=name)
        speed = [json.loads(line) for line in (self.folder / '2' / 'timing.jsonl').read_text().splitlines()][-1]
        self.assertGreater(speed['step_ms'], 0)

    def test_dtype_reaches_the_model(self):
        from training import mesh
        from training import run as runs

        run = runs.build(self.config(dtype='bfloat16'), mesh.make(1))
        self.assertEqual(run.model.dtype, 'bfloat16')


if __name__ == '__main__':
    absltest.main()
