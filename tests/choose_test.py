"""configs/choose.py: runs learn which answer is right; ...ForMultipleChoice of Hugging Face goes in and out.

What transformers gives is put together in float64: the recorded hidden states of the model without a head (tests/reference),
and its head by numpy.
"""

import json

import jax
import numpy as np
import pytest
import scipy.special
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file

from configs import choose
from tests import experiments, recorded
from tests.recorded import REFERENCE, case, convert
from transformer.conversion import arrays as named_arrays
from transformer.layers.activations import Gelu, Relu
from transformer.layers.heads import Classes

# {family: (architecture, what was recorded, the layer before the score, its activation, our head)}
FAMILIES = {
    'bert': ('BertForMultipleChoice', 'bert_model', 'bert.pooler.dense', np.tanh, Classes(1)),
    'roberta': ('RobertaForMultipleChoice', 'roberta', 'roberta.pooler.dense', np.tanh, Classes(1)),
    'albert': ('AlbertForMultipleChoice', 'albert_model', 'albert.pooler', np.tanh, Classes(1, dropout=0.1)),
    'electra': ('ElectraForMultipleChoice', 'electra_model', 'sequence_summary.summary',
                lambda x: x * scipy.special.ndtr(x), Classes(1, activation=Gelu(), dropout=0.1)),
    'distilbert': ('DistilBertForMultipleChoice', 'distilbert_model', 'pre_classifier', lambda x: np.maximum(x, 0),
                   Classes(1, activation=Relu(), dropout=0.2))}


class ConversionTest(recorded.TestCase):
    def made(self, family, **config):
        """(folder, {name: array} of inputs [1, 3, 11], logits [1, 3] in float64) of a model with the recorded body; the score
        of a row whose first place is padding is nan."""
        architecture, name, before, activation, _ = FAMILIES[family]
        recording, draw = case(name), np.random.default_rng(0)
        front = f'{family}.'
        weights = load_file(REFERENCE / name / 'model.safetensors')
        weights = {f'{front}{key.removeprefix(front)}': x for key, x in weights.items() if not key.startswith('lm_head')}
        states = recording['output']['last_hidden_state'][:, 0]
        width = states.shape[-1]
        drawn = lambda *shape: draw.normal(size=shape).astype(np.float32)
        made = {f'{before}.weight': drawn(width, width), f'{before}.bias': drawn(width)}
        weights = made | weights | {'classifier.weight': drawn(1, width), 'classifier.bias': drawn(1)}
        layer = lambda x, name: x @ np.float64(weights[f'{name}.weight']).T + weights[f'{name}.bias']
        scores = layer(activation(layer(states, before)), 'classifier').reshape(1, -1)
        folder = self.hugging_face(name, weights=lambda _: weights, architectures=[architecture], **config)
        inputs = {key: x[None] for key, x in recording['input'].items()}
        there = recording['direction']['last_hidden_state'][:, 0].any(-1)
        return folder, inputs, np.where(there, scores, np.nan)

    @parameterized.parameters(*FAMILIES)
    def test_scores_in_float64(self, family):
        folder, inputs, wanted = self.made(family)
        with jax.enable_x64(True):
            model, params = convert.from_hf(folder, dtype='float64')
            told, *_ = convert.opened(folder)
            outputs = model.apply({'params': params}, **named_arrays.inputs_of(told, model, inputs))
            found = named_arrays.outputs_of(told, outputs, inputs)['logits']
        self.assertEqual(model.head, FAMILIES[family][-1])
        self.assertEqual(found.shape, (1, 3))
        there = ~np.isnan(wanted)
        self.assertGreaterEqual(there.sum(), 2)
        np.testing.assert_allclose(found[there], wanted[there], rtol=0, atol=1e-10 * np.abs(wanted[there]).max())

    @parameterized.parameters(*FAMILIES)
    @pytest.mark.slow
    def test_in_and_out_again(self, family):
        folder, inputs, wanted = self.made(family)
        run, out = self.folder / 'run', self.folder / 'out'
        self.assertIn(FAMILIES[family][0], self.convert(f'--from_hf={folder}', f'--workdir={run}'))
        self.convert(f'--workdir={run}', f'--to_hf={out}')
        before, after = (load_file(one / 'model.safetensors') for one in (folder, out))
        self.assertEqual({name: x.tobytes() for name, x in before.items() if name in after or 'position_ids' not in name},
                         {name: x.tobytes() for name, x in after.items()})
        self.assertEqual(json.loads((out / 'config.json').read_text())['architectures'], [FAMILIES[family][0]])
        np.savez(self.folder / 'in.npz', **inputs)
        said = self.convert(f'--workdir={run}', f'--verify={self.folder / "in.npz"}', f'--out={self.folder / "out.npz"}')
        self.assertIn('logits [1, 3]', said)
        found, there = np.load(self.folder / 'out.npz')['logits'], ~np.isnan(wanted)
        np.testing.assert_allclose(found[there], wanted[there], rtol=1e-4, atol=1e-4)

    def test_arrays_of_other_shapes(self):
        folder, inputs, _ = self.made('bert')
        model, _ = convert.from_hf(folder)
        told, *_ = convert.opened(folder)
        with self.assertRaisesRegex(ValueError, r'expected integers \[examples, answers, length\] of one shape in input_ids'):
            named_arrays.require_fit({name: x[0] for name, x in inputs.items()}, told, model, 'in.npz')

    @parameterized.parameters(({'summary_type': 'last'},), ({'summary_use_proj': False},), ({'summary_activation': 'tanh'},),
                              ({'summary_proj_to_labels': True},), ({'summary_first_dropout': 0.1},))
    def test_another_summary(self, config):
        folder, *_ = self.made('electra', **config)
        with self.assertRaisesRegex(ValueError, f'config.json has {next(iter(config))}=.*, which is not supported'):
            convert.from_hf(folder)

    @parameterized.parameters(
        ('bert', 'Classes()'), ('roberta', 'Classes()'), ('albert', 'Classes(dropout=0.1)'),
        ('electra', 'Classes(activation=Gelu(), dropout=0.1)'), ('distilbert', 'Classes(activation=Relu(), dropout=0.2)'))
    def test_the_head_is_that_of_the_family(self, family, head):
        run = self.folder / 'run'
        folder, *_ = self.made(family)
        self.convert(f'--from_hf={folder}', f'--workdir={run}')
        config = choose.get_config(str(run))
        self.assertEqual((config.model.head, config.task.name), (head, 'transformer.tasks.reading:MultipleChoice'))
        self.assertEqual(config.data.pipeline, 'data.text.choices:Choices')


class ChooseTest(recorded.TestCase):
    """The answer with a 9 in it is right, which twenty steps teach."""

    def trained_on(self, name, config='choose', **more):
        run, mine, path = self.folder / 'run', self.folder / 'mine', self.folder / 'answers.tsv'
        self.convert(f'--from_hf={self.hugging_face(name)}', f'--workdir={run}')
        answers = lambda i: (f'8 {i % 40 + 10}', f'9 {i % 40 + 10}')[::1 if i % 2 else -1]
        rows = [(f'{i % 50 + 3} 7', *answers(i), i % 2) for i in range(80)]
        path.write_text('context\tending0\tending1\tlabel\n' + ''.join('\t'.join(map(str, row)) + '\n' for row in rows))
        done = experiments.call(
            'train', f'--config=configs/{config}.py:{run}', f'--config.data.path={path}', '--config.train.steps=20',
            '--config.optimizer.learning_rate=0.02', '--config.optimizer.schedule.warmup_steps=0', '--config.data.length=16',
            '--config.data.packing=none', f'--workdir={mine}')
        self.assertEqual(done.code, 0, done.err)
        self.assertIn("context from 'context', answers from 'ending0' and 'ending1', label from 'label'; 72 examples", done.out)
        return mine, path

    @pytest.mark.slow
    def test_trains_is_measured_predicts_and_goes_out(self):
        mine, path = self.trained_on('bert_model')
        done = experiments.call('eval', f'--workdir={mine}', f'--path={path}')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['accuracy'], 1, done)
        done = experiments.call('eval', f'--workdir={mine}', f'--path={path}', f'--against={mine}')
        told = json.loads(done.out.splitlines()[-1])
        self.assertEqual((told['examples'], told['tests']['accuracy']['first']), (80, 1), done)
        given = b'3 7\t8 11\t9 11\t8 12\n\n3 7\t9 11\t8 11\n'
        done = experiments.call('predict', f'--workdir={mine}', '--json', stdin=given)
        first, blank, second = map(json.loads, done.out.splitlines())
        self.assertEqual((first['answer'], first['number'], second['answer'], blank), ('9 11', 1, '9 11', {'text': ''}))
        self.assertLen(first['probabilities'], 3)
        self.assertAlmostEqual(sum(first['probabilities']), 1, places=5)
        done = experiments.call('predict', f'--workdir={mine}', f'--input={path}')
        self.assertLen(done.out.splitlines(), 80)
        self.assertTrue(all(line.startswith('9 ') for line in done.out.splitlines()))
        for line, message in ((b'3 7\t9 11\n', 'has the only answer'), (b'3 7\n', 'is not what this run answers')):
            done = experiments.call('predict', f'--workdir={mine}', stdin=line)
            self.assertEqual(done.code, 1)
            self.assertIn(message, done.err)
        done = experiments.call('eval', f'--workdir={mine}', f'--attention={self.folder / "a.html"}', '--input=3 7\t9 11\t8 11')
        self.assertEqual(done.code, 0, done.err)
        out = self.folder / 'out'
        self.convert(f'--workdir={mine}', f'--to_hf={out}')
        self.assertEqual(json.loads((out / 'config.json').read_text())['architectures'], ['BertForMultipleChoice'])
        self.assertEqual(convert.from_hf(out)[0], convert.runs.load(mine).model)

    @parameterized.parameters(('gpt2', 'GPT2ForSequenceClassification'), ('bart', 'BartForSequenceClassification'))
    @pytest.mark.slow
    def test_others_go_out_as_a_number(self, name, architecture):
        mine, _ = self.trained_on(name)
        out = self.folder / 'out'
        self.convert(f'--workdir={mine}', f'--to_hf={out}')
        told = json.loads((out / 'config.json').read_text())
        self.assertEqual((told['architectures'], told['id2label']), ([architecture], {'0': 'LABEL_0'}))

    def test_needs_a_run(self):
        with self.assertRaisesRegex(ValueError, 'configs/choose.py trains the model of a run further; name its workdir'):
            choose.get_config('')


if __name__ == '__main__':
    absltest.main()
