"""convert.py on runs trained here: to Hugging Face, and to one file."""

import json

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file

from configs import base
from tests import experiments, recorded
from tests.recorded import convert
from training import mesh

WITHOUT_BIASES = {'train.steps': 1, 'model.last_dropout': 0.2} | {
    f'model.{name}': x for name, x in base.NO_BIASES.items()}


def flat(tree):
    return {mesh.path_of(keys): np.asarray(x) for keys, x in jax.tree_util.tree_leaves_with_path(tree)}


class RunsTest(recorded.TestCase):

    def assert_same_logits(self, out, workdir, **inputs):
        """Of the model in a folder and of a run."""
        model, params = convert.from_hf(out)
        found, wanted = model.apply({'params': params}, **inputs), convert.runs.load(workdir).apply(**inputs)
        np.testing.assert_allclose(found['logits'], wanted['logits'], rtol=0, atol=1e-5)

    def one_file(self, workdir, file):
        """Writes a run with --to_safetensors and compares what is read."""
        said = self.convert(f'--workdir={workdir}', f'--to_safetensors={file}')
        snapshot = convert.runs.load(workdir)
        wanted = flat(snapshot.params)
        count = sum(x.size for x in wanted.values())
        self.assertEqual(said, f'{file}: {len(wanted)} arrays with {count:,} parameters of step {snapshot.step}; '
                               f'{file.name}.json has their names and shapes, and the config\n')
        bits = lambda arrays: {name: (x.dtype.name, x.shape, x.tobytes()) for name, x in arrays.items()}
        self.assertEqual(bits(load_file(file)), bits(wanted))
        beside = json.loads((file.parent / f'{file.name}.json').read_text())
        shapes = {name: {'shape': [*x.shape], 'dtype': x.dtype.name} for name, x in wanted.items()}
        self.assertEqual(beside['parameters'], shapes)
        self.assertEqual((beside['config'], beside['step']), (json.loads((workdir / 'config.json').read_text()), snapshot.step))
        self.assertCountEqual(file.parent.glob(f'{file.name}*'), [file, file.parent / f'{file.name}.json'])
        self.assert_refused(f'{file} is there already; give the new file another name', f'--workdir={workdir}',
                            f'--to_safetensors={file}')
        return wanted

    @pytest.mark.slow
    def test_a_run_that_has_no_form_there(self):
        out = self.folder / 'out'
        workdir = self.trained(**{'train.steps': 1, 'model.positions': 'Rotary()', 'model.key_heads': 1})
        self.assert_refused(r"^convert.py: model.positions=Rotary\(.*\) cannot be written as GPT2LMHeadModel; train with "
                            r"--config.model.positions='Learned\(\)', or write the run as it is with --to_safetensors=FILE.\n$",
                            f'--workdir={workdir}', f'--to_hf={out}')
        self.assertFalse(out.exists())

    @pytest.mark.slow
    def test_a_translator_trained_here(self):
        """In its config.json 0 stands for nothing else."""
        stack = {'attention': 'Softmax(score=Dot())', 'positions': 'T5Bias(buckets=8, distance=9)', 'norm': 'RMSNorm()',
                 'feed_forward': 'Mlp(activation=Relu(), bias=False)', 'projection_bias': False, 'output_bias': False,
                 'residual': 'PreNorm()', 'last_dropout': -1.0}
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.translator(**{f'model.{name}.{field}': x for name in ('encoder', 'decoder') for field, x in stack.items()} | {
            'train.steps': 1, 'model.cross_attention': 'Softmax(score=Dot())', 'model.scale_embedding': False,
            'model.head': 'NextWords(scaled=True)'})
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn('as transformers has none like Word()', said)
        settings = json.loads((out / 'config.json').read_text())
        sizes = {'d_model': 16, 'd_kv': 8, 'd_ff': 64, 'num_layers': 1, 'num_decoder_layers': 1, 'num_heads': 2}
        self.assertEqual({name: settings[name] for name in sizes}, sizes)
        jax.tree.map(np.testing.assert_array_equal, convert.from_hf(out)[1], convert.runs.load(workdir).params)

    def test_a_run_trained_here(self):
        workdir, out, file = self.trained(**WITHOUT_BIASES), self.folder / 'out', self.folder / 'all.safetensors'
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn('\nwith zeros for biases: the outputs are the same\ndropout there: model.last_dropout=0.0\n', said)
        self.assert_same_logits(out, workdir, inputs=np.arange(2, 26).reshape(2, 12) % 9)
        self.one_file(workdir, file)

    @pytest.mark.slow
    def test_a_run_in_bfloat16_as_one_file(self):
        workdir = self.trained(**{'train.steps': 1, 'parameter_dtype': 'bfloat16', 'optimizer.average_decay': 0.0})
        found = self.one_file(workdir, self.folder / 'all.safetensors')
        self.assertEqual({x.dtype.name for x in found.values()}, {'bfloat16'})

    @pytest.mark.slow
    def test_a_memory_network_as_one_file(self):
        """transformers has none, and the sentence says what can be done."""
        experiments.write_babi(self.folder / 'en-10k', 20)
        workdir, out = self.folder / 'run', self.folder / 'out'
        config = experiments.tiny_stories(self.folder, **{'train.steps': 1, 'log.every_steps': 1})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        self.one_file(workdir, self.folder / 'all.safetensors')
        self.assert_refused(r'memory_network:MemoryNetwork has no counterpart in transformers, .*write the run as it is with '
                            '--to_safetensors=FILE', f'--workdir={workdir}', f'--to_hf={out}')

    @pytest.mark.slow
    def test_a_translator_with_sinusoids(self):
        self.translator(**{'train.steps': 1})
        workdir, out = self.folder / 'run', self.folder / 'out'
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn('MarianMTModel', said)
        ids = np.arange(1, 13).reshape(2, 6)
        self.assert_same_logits(out, workdir, inputs=ids, decoder_inputs=ids[:, :4])

    @parameterized.parameters(('cls', 'ViTForImageClassification'), ('mean', 'IJepaForImageClassification'))
    @pytest.mark.slow
    def test_a_model_of_images_trained_here(self, pool, architecture):
        workdir, out = self.folder / 'run', self.folder / 'out'
        config = experiments.changed(experiments.tiny_images(), **{'model.pool': pool, 'model.positions': 'Sinusoidal2d()'})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn(architecture, said)
        self.assertIn('with positions as a table', said)
        self.assert_same_logits(out, workdir, image=np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32))


if __name__ == '__main__':
    absltest.main()
