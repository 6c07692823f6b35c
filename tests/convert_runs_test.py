"""convert.py on runs trained here: to Hugging Face, and to one file."""

import dataclasses
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
from training import run as runs
from training.snapshot import Snapshot

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

    def assert_same_ids(self, workdir, out, text):
        """The run that a folder becomes tokenizes texts as the run that was written there, also the signs of its tokens."""
        own, other = convert.runs.load(workdir).data, convert.snapshot_of(out).data
        end = own.tokenizer.piece(own.end)
        for one in (text, f'{end}{text}', f' {text}\n{end}'):
            self.assertEqual(other.encode(one).tolist(), own.encode(one).tolist(), one)

    def one_file(self, workdir, out):
        """Writes a run with --to_safetensors and compares what is read; {name: array}."""
        said = self.convert(f'--workdir={workdir}', f'--to_safetensors={out}')
        snapshot = convert.runs.load(workdir)
        wanted, found = flat(snapshot.params), load_file(out)
        bits = lambda arrays: {name: (x.dtype.name, x.shape, x.tobytes()) for name, x in arrays.items()}
        self.assertEqual(bits(found), bits(wanted))
        about = json.loads(out.with_suffix('.json').read_text())
        shapes = {name: {'shape': [*x.shape], 'dtype': x.dtype.name} for name, x in wanted.items()}
        self.assertEqual(about['parameters'], shapes)
        self.assertEqual((about['config'], about['step']), (json.loads((workdir / 'config.json').read_text()), snapshot.step))
        self.assertIn(f'{out.name}: {snapshot.run.parameters():,} parameters in {len(wanted)} arrays', said)
        self.assertCountEqual(out.parent.glob(f'*{out.stem}.*'), [out, out.with_suffix('.json')])
        return found

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
        self.assertIn('with its tokenizer', said)
        settings = json.loads((out / 'config.json').read_text())
        sizes = {'d_model': 16, 'd_kv': 8, 'd_ff': 64, 'num_layers': 1, 'num_decoder_layers': 1, 'num_heads': 2}
        self.assertEqual({name: settings[name] for name in sizes}, sizes)
        jax.tree.map(np.testing.assert_array_equal, convert.from_hf(out)[1], convert.runs.load(workdir).params)

    def test_a_run_trained_here(self):
        other_kernel = {'model.attention': "Softmax(implementation='plain')"}
        workdir, out, file = self.trained(**WITHOUT_BIASES | other_kernel), self.folder / 'out', self.folder / 'all.safetensors'
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn('\nwith zeros for biases: the outputs are the same\n'
                      'dropout in training there: model.last_dropout=0.0\n', said)
        self.assert_same_logits(out, workdir, inputs=np.arange(2, 26).reshape(2, 12) % 9)
        self.assert_same_ids(workdir, out, 'a b')
        self.one_file(workdir, file)
        self.assert_refused('all.safetensors is already there; give', f'--workdir={workdir}', f'--to_safetensors={file}')
        self.assert_refused('gs://bucket/x is a remote path, and this is read and written locally; give a local path',
                            f'--workdir={workdir}', '--to_hf=gs://bucket/x')
        self.assert_refused('give it a name that ends in .safetensors', f'--workdir={workdir}', '--to_safetensors=x.npz')
        self.assert_refused('There is no folder', f'--workdir={workdir}', f'--to_safetensors={self.folder}/no/x.safetensors')

    @parameterized.parameters(True, False)
    @pytest.mark.slow
    def test_both_parts_of_an_electra(self, tied):
        workdir = self.folder / 'run'
        self.text.write_text(experiments.lines(200))
        config = experiments.tiny_reader(self.text, 'masked', **{'data.pairs': 'none', 'train.steps': 2})
        with config.unlocked():
            config.model = base.part('transformer.models.electra:Electra', length=16, tied=tied, embedding_width=6, **{
                name: dict(layers=1, heads=2, width=width) for name, width in (('generator', 8), ('discriminator', 16))})
            config.task = base.part('transformer.tasks.electra:ReplacedTokens')
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        ids = np.arange(5, 17).reshape(2, 6)
        snapshot = convert.runs.load(workdir)
        for part, architecture, name, more in (('discriminator', 'ElectraForPreTraining', 'replaced_logits', {}), (
                'generator', 'ElectraForMaskedLM', 'logits', {'masked': np.arange(6)[None].repeat(2, 0)})):
            out = self.folder / part
            said = self.convert(f'--workdir={workdir}', f'--to_hf={out}', *[f'--part={part}'] * (part == 'generator'))
            self.assertIn(architecture, said)
            model, params = convert.from_hf(out)
            found, wanted = model.apply({'params': params}, ids)[name], snapshot.apply(inputs=ids, **more)[name]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        self.assert_refused("--part is 'both'; expected discriminator or generator", f'--workdir={workdir}',
                            f'--to_hf={self.folder / "out"}', '--part=both')
        self.assertIn('BertForMaskedLM' if not tied else 'ElectraForMaskedLM', self.convert(
            f'--workdir={workdir}', f'--to_hf={self.folder / "same"}', '--part=generator',
            *['--family=bert'] * (not tied)))
        self.assert_refused('--family=gpt2 is none that .*Electra is written as; expected one of bert, roberta,',
                            f'--workdir={workdir}', f'--to_hf={self.folder / "out"}', '--family=gpt2')
        self.assert_refused('--part is for --to_hf and --verify', f'--workdir={workdir}', '--part=generator',
                            f'--to_safetensors={self.folder / "out.safetensors"}')

    @pytest.mark.slow
    def test_an_albert_trained_here(self):
        workdir, out = self.folder / 'run', self.folder / 'out'
        self.text.write_text(experiments.lines(200))
        config = experiments.tiny_reader(self.text, 'masked', **{
            'data.pairs': 'order', 'train.steps': 2, 'model.layers': 4, 'model.depth': 'Groups(groups=2)',
            'model.embedding_width': 6})
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        self.assertIn('AlbertForPreTraining', self.convert(f'--workdir={workdir}', f'--to_hf={out}'))
        self.assert_same_logits(out, workdir, inputs=np.arange(5, 17).reshape(2, 6))
        self.assert_refused('--part=generator is for runs of transformer.models.electra:Electra', f'--workdir={workdir}',
                            f'--to_hf={self.folder / "other"}', '--part=generator')

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
        self.assert_same_ids(workdir, out, 'A cat ,  e\u0301\xa0SAT. ')
        ids = np.arange(1, 13).reshape(2, 6)
        self.assert_same_logits(out, workdir, inputs=ids, decoder_inputs=ids[:, :4])

    @parameterized.parameters(('cls', 'ViTForImageClassification'), ('mean', 'IJepaForImageClassification'),
                              ('cls', 'DeiTForImageClassificationWithTeacher', {'model.distillation': 'logits'}),
                              ('both', 'Dinov2WithRegistersForImageClassification', {
                                  'model.registers': 2, 'model.residual': 'LayerScale()',
                                  'model.feed_forward': 'Gated(inner=24, activation=Silu())'}))
    @pytest.mark.slow
    def test_a_model_of_images_trained_here(self, pool, architecture, more=None):
        workdir, out = self.folder / 'run', self.folder / 'out'
        config = experiments.changed(experiments.tiny_images(), **{
            'model.pool': pool, 'model.positions': 'Sinusoidal2d()'} | (more or {}))
        self.assertEqual(experiments.train(config, workdir)[0], 0)
        said = self.convert(f'--workdir={workdir}', f'--to_hf={out}')
        self.assertIn(architecture, said)
        self.assertIn('with positions as a table', said)
        self.assert_same_logits(out, workdir, image=np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32))


class ImagesTest(recorded.TestCase):
    """What models there cannot do with images of some sizes, without training."""

    def snapshot(self, height, width, model, task='vit.tasks.classification:Classification'):
        config = experiments.changed(experiments.tiny_images(), **{
            'data.size': height, 'data.width': width, 'data.channels': 3, 'model': model, 'task': base.part(task)})
        run = runs.build(config, mesh.make(1, 1, 1), None)
        return Snapshot(run, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), run.shapes.params), 0)

    def assert_written(self, architecture, snapshot, family=None):
        out = self.folder / f'written_{len([*self.folder.iterdir()])}'
        self.assertIn(architecture, convert.folder_of(snapshot, out, family))
        _, params = convert.from_hf(out)
        self.assertEqual(jax.tree.map(np.shape, params), jax.tree.map(np.shape, snapshot.params))

    def assert_not_written(self, message, snapshot, family=None):
        with self.assertRaisesRegex(ValueError, f'{message}, or write the run as it is with --to_safetensors=FILE.$'):
            convert.folder_of(snapshot, self.folder / 'out', family)
        self.assertFalse((self.folder / 'out').exists())

    def swin(self, size, more='', **fields):
        """A Swin with windows of this size, and `more` arguments of theirs."""
        return base.part('vit.models.hierarchical:Hierarchical', stem='Patches(size=2)', stages=base.stages(
            layers=(2, 2), widths=(8, 16), heads=(2, 4), positions='SwinBias()',
            partition=f'AlternatePartition(Windows({size}{more}), Windows({size}, {size // 2}{more}))'), **fields)

    def test_a_swin_with_a_stage_smaller_than_its_windows(self):
        self.assert_written('SwinForImageClassification', self.snapshot(16, 16, self.swin(4)))
        self.assert_not_written(
            'stage 1 form a grid of 4x4, smaller than the windows of 7x7, .*; give larger images, or windows of at most 4',
            self.snapshot(16, 16, self.swin(7)))

    def test_a_swin_with_a_table_of_positions_for_patches_beyond_the_image(self):
        """There it has none for the patches in which the image ends."""
        self.assert_written('SwinForImageClassification', self.snapshot(9, 12, self.swin(2)))
        self.assert_written('SwinForImageClassification', self.snapshot(8, 12, self.swin(2, positions='Learned()')))
        self.assert_not_written(
            'SwinModel of transformers has positions for whole patches alone, and images of 9x12 end within one of 2x2; give '
            'images of whole patches, or leave out model.positions', self.snapshot(9, 12, self.swin(2, positions='Learned()')))

    def test_a_swin_of_timm_on_images_that_end_within_a_patch(self):
        """Of which timm leaves out the rest."""
        swin = self.swin(2, ", shrink='sides', roll_first=True")
        self.assert_not_written('SwinTransformer of timm takes whole patches of 2x2 alone, and images of 9x12 end within one; '
                                'give images of whole patches', self.snapshot(9, 12, swin), 'timm_swin')
        self.assert_written('SwinTransformer', self.snapshot(6, 12, swin), 'timm_swin')

    def test_a_mae_on_images_that_are_not_square(self):
        """The encoder alone takes them."""
        stack = dict(layers=1, heads=2, width=8, positions='Learned(frozen=True)')
        mae = base.part('vit.models.mae:Mae', patch=2, encoder=stack, decoder=stack)
        whole = self.snapshot(4, 8, mae, 'vit.tasks.reconstruction:Reconstruction')
        self.assert_not_written('ViTMAEForPreTraining of transformers is made for square images, not for 4x8; give square '
                                'images', whole)
        run = dataclasses.replace(whole.run, model=whole.model.clone(decodes=False))
        self.assert_written('ViTMAEModel', dataclasses.replace(whole, run=run, params={'encoder': whole.params['encoder']}))
        self.assert_written('ViTMAEForPreTraining', self.snapshot(4, 4, mae, 'vit.tasks.reconstruction:Reconstruction'))

    def test_a_mae_whose_decoder_has_a_width_of_no_sines_there(self):
        mae = lambda width: base.part('vit.models.mae:Mae', patch=2, **{
            name: dict(layers=1, heads=3, width=own, positions='Learned(frozen=True)')
            for name, own in (('encoder', 18), ('decoder', width))})
        task = 'vit.tasks.reconstruction:Reconstruction'
        self.assert_not_written('^model.decoder.width=18 cannot be written as ViTMAEForPreTraining; train with '
                                '--config.model.decoder.width=24', self.snapshot(4, 4, mae(18), task))
        self.assert_written('ViTMAEForPreTraining', self.snapshot(4, 4, mae(12), task))

    def test_a_vit_with_registers_on_images_that_are_not_square(self):
        """transformers would take 1x4 patches for 2x2."""
        vit = base.part('vit.models.vit:Vit', patch=2, layers=1, heads=2, width=8, pool='both', registers=2,
                        residual='LayerScale()')
        self.assert_not_written('Dinov2WithRegistersModel of transformers is made for square images, not for 2x8; give square '
                                'images', self.snapshot(2, 8, vit))
        self.assert_written('Dinov2WithRegistersForImageClassification', self.snapshot(4, 4, vit))


if __name__ == '__main__':
    absltest.main()
