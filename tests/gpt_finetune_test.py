"""configs/gpt_finetune.py: a GPT that is trained here learns classes with its language model as an auxiliary loss."""

import json

import jax
import numpy as np
import pytest
from absl.testing import absltest

from configs import gpt_finetune
from tests import experiments
from tests.glue_test import files
from training import run as runs


class GptFinetuneTest(experiments.TestCase):
    def pretrained(self):
        return self.trained(**{'data.tokenizer': 'Byte(special=("begin", "separator", "cls"))', 'data.length': 32,
                               'model.length': 32})

    def config(self, variant, **changes):
        return experiments.changed(gpt_finetune.get_config(variant), **{
            'data.path': str(self.folder / 'data'), 'data.batch_size': 4, 'train.steps': 3, 'log.every_steps': 1,
            'mesh.data': 1, 'dtype': 'float32'} | changes)

    def write(self, task):
        (self.folder / 'data').mkdir()
        for name, text in files(task).items():
            (self.folder / 'data' / name).write_text(text)

    def test_texts_stand_between_their_tokens(self):
        self.write('mrpc')
        config = self.config(f'mrpc,{self.pretrained()}')
        run = runs.build(config, runs.mesh_for(config, 1), None, self.folder / 'run')
        roles, batch = run.data.tokenizer.roles, next(run.data.train(0))
        self.assertEqual(batch['inputs'].shape[:2], (4, 2))
        for pair, sizes in zip(batch['inputs'], (batch['segments'] > 0).sum(-1)):
            for row, size in zip(pair, sizes):
                special = [int(i) for i in row[:size] if i in (roles.begin, roles.separator, roles.cls)]
                self.assertEqual(special, [roles.begin, roles.separator, roles.cls])
                self.assertEqual((row[0], row[size - 1]), (roles.begin, roles.cls))
            texts = [[part.tolist() for part in np.split(row[1:size - 1], np.flatnonzero(row == roles.separator) - 1)]
                     for row, size in zip(pair, sizes)]
            (first, second), (other, one) = texts
            self.assertEqual((first[:4], second[1:5]), (one[1:5], other[:4]))
        self.assertEqual(run.task.coefficients, {'cross_entropy': 1.0, 'words': 0.5})
        single = gpt_finetune.get_config(f'sst2,{self.folder / "run"}')
        self.assertEqual((single.data.both, single.data.framing, single.task.auxiliary), (False, 'gpt', 0.5))

    def choices(self, rows=24):
        path = self.folder / 'data.jsonl'
        found = ({'article': f'key {i}', 'question': 'head', 'options': ['row', 'mask', 'sum'][:2 + i % 2],
                  'answer': 'AB'[i % 2]} for i in range(rows))
        path.write_text(''.join(json.dumps(row) + '\n' for row in found))
        return self.config(f'choices,{self.pretrained()}', **{'data.path': str(path)})

    def test_answers_stand_behind_context_and_question(self):
        config = self.choices()
        run = runs.build(config, runs.mesh_for(config, 1), None, self.folder / 'run')
        roles, batch = run.data.tokenizer.roles, next(run.data.train(0))
        self.assertEqual(batch['inputs'].shape[:2], (4, 3))
        for row, size in zip(batch['inputs'][:, 1], (batch['segments'][:, 1] > 0).sum(-1)):
            self.assertEqual((row[0], row[size - 1]), (roles.begin, roles.cls))
            first, second = np.split(row[1:size - 1], np.flatnonzero(row[1:size - 1] == roles.separator))
            self.assertRegex(run.data.decode(first), r'key \d+ head')
            self.assertEqual(run.data.decode(second[1:]), 'mask')
        self.assertEqual(run.task.coefficients, {'cross_entropy': 1.0, 'words': 0.5})

    @pytest.mark.slow
    def test_chooses_among_answers(self):
        workdir = self.folder / 'mine'
        code, out = experiments.train(self.choices(), workdir)
        self.assertEqual(code, 0, out)
        row = experiments.rows(workdir, 'valid')[-1]
        self.assertAlmostEqual(row['loss'], row['cross_entropy'] + 0.5 * row['words'], places=5)
        self.assertIn('accuracy', row)
        done = experiments.call('predict', f'--workdir={workdir}', '--json', stdin=b'key 3\thead\trow\tmask\n')
        self.assertEqual(done.code, 0, done.err)
        self.assertAlmostEqual(sum(json.loads(done.out)['probabilities']), 1)
        out = self.folder / 'out'
        done = experiments.call('convert', f'--workdir={workdir}', f'--to_hf={out}')
        self.assertEqual(done.code, 0, done.err)
        self.assertIn('GPT2DoubleHeadsModel', done.out)
        model, params = experiments.script('convert').from_hf(out)
        run = runs.load(workdir)
        _, rows, _ = run.data.read_choices('key 3\thead\trow\tmask')
        batch = {name: x for name, x in run.data.rows(rows, 32).items() if name != 'types'}
        found, wanted = (np.asarray(one['choice_logits']) for one in (
            model.apply({'params': params}, **batch), run.apply(**batch)))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_trains_and_reads_both_orders_alike(self):
        self.write('mrpc')
        workdir = self.folder / 'mine'
        code, out = experiments.train(self.config(f'mrpc,{self.pretrained()}'), workdir)
        self.assertEqual(code, 0, out)
        row = experiments.rows(workdir, 'valid')[-1]
        self.assertAlmostEqual(row['loss'], row['cross_entropy'] + 0.5 * row['words'], places=5)
        self.assertContainsSubset({'accuracy', 'f1'}, experiments.rows(workdir, 'scores')[-1])
        done = experiments.call('predict', f'--workdir={workdir}', '--json', stdin=b'key row\tthe head\nthe head\tkey row\n')
        self.assertEqual(done.code, 0, done.err)
        one, other = (line.partition('"class"')[2] for line in done.out.splitlines())
        self.assertEqual(one, other)
        snapshot = runs.load(workdir)
        batch = next(iter(snapshot.run.evaluation('valid')))
        turned = {name: x[:, ::-1] if x.ndim == 3 else x for name, x in batch.items()}
        terms = [jax.device_get(snapshot.run.eval_terms(snapshot.variables, one)) for one in (batch, turned)]
        for name in terms[0]:
            np.testing.assert_allclose(terms[0][name], terms[1][name], rtol=1e-5)

    def test_what_cannot_be_trained_so(self):
        self.write('sst2')
        run = self.pretrained()
        config = self.config(f'sst2,{run}', **{'data.both': True})
        with self.assertRaisesRegex(ValueError, 'data.both=True is for pairs of texts, and the training part has single ones'):
            runs.build(config, runs.mesh_for(config, 1), None, run)
        with self.assertRaisesRegex(ValueError, "configs/gpt_finetune.py trains the model of a run further; name its workdir"):
            gpt_finetune.get_config('')


class EncoderTest(experiments.TestCase):
    def test_an_encoder_has_no_language_model(self):
        with self.assertRaisesRegex(ValueError, 'is a run of transformer.models.bert:Bert, and an auxiliary language'):
            gpt_finetune.get_config(str(self.reader('labelled')))


if __name__ == '__main__':
    absltest.main()
