"""A masked autoencoder from the command line: trained, used, measured, and its encoder trained further."""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest
from PIL import Image

from tests import experiments
from tests.recorded import REFERENCE
from training import run as runs


@functools.cache
def trained():
    """The folder of a run of two steps."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    code, out = experiments.train(experiments.tiny_autoencoder(), folder / 'run')
    if code:
        raise RuntimeError(out)
    return folder / 'run'


class AutoencoderTest(experiments.TestCase):
    def test_trains_and_reports(self):
        row, = experiments.rows(trained(), 'valid')
        self.assertEqual((row['step'], row['weight']), (2, 10.0))
        self.assertGreater(row['loss'], 0.0)
        probe, = experiments.rows(trained(), 'probe')
        self.assertBetween(probe['accuracy'], 0.0, 1.0)
        self.assertTrue((trained() / 'samples' / 'reconstructions_2.png').is_file())

    def test_predict_shows_the_loss_and_writes_pictures(self):
        paths = experiments.save_digits(self.folder, range(3))
        pictures = self.folder / 'pictures'
        pictures.mkdir()
        given = '\n'.join(map(str, paths)).encode()
        call = lambda *more: experiments.call('predict', f'--workdir={trained()}', *more, stdin=given)
        plain, json_of = call(), call('--json', f'--pictures={pictures}')
        self.assertEqual((plain.code, plain.err, json_of.code), (0, '', 0), json_of.err)
        found = [json.loads(line) for line in json_of.out.splitlines()]
        self.assertEqual(plain.out.splitlines(), [f'{one["loss"]:.6f}\t{one["path"]}' for one in found])
        self.assertEqual([one['picture'] for one in found], [str(pictures / f'{i}_{i - 1}.png') for i in (1, 2, 3)])
        self.assertEqual([one['masked'] for one in found], [0.75] * 3)
        self.assertLen([path for path in pictures.iterdir() if path.read_bytes().startswith(b'\x89PNG')], 3)
        self.assertNotEqual(call('--seed=1').out, plain.out)
        self.assertEqual(call('--seed=0').out, plain.out)

    def test_refused(self):
        path, = experiments.save_digits(self.folder, range(1))
        for arguments, message in (
                ([f'--pictures={self.folder / "nope"}'], "There is no folder '.*nope' to write pictures in; make it first"),
                (['--pictures='], "There is no folder '' to write pictures in; make it first"),
                (['--tokens=3'], '--tokens is for models that generate text; leave it out')):
            done = experiments.call('predict', f'--workdir={trained()}', f'--input={path}', *arguments)
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertRegex(done.err, message)

    @pytest.mark.slow
    def test_attention_of_the_encoder_over_the_image(self):
        path, = experiments.save_digits(self.folder, range(1))
        out = self.folder / 'out.png'
        done = experiments.call('eval', f'--workdir={trained()}', f'--attention={out}', f'--input={path}')
        self.assertEqual(done.code, 0, done.err)
        layers = json.loads(out.with_suffix('.json').read_text())['layers']
        self.assertEqual([one['layer'] for one in layers], ['encoder/block_0'])

    def test_its_encoder_learns_classes(self):
        """A ViT begins with the parameters of the encoder and a head of its own."""
        workdir = self.folder / 'mine'
        done = experiments.call('train', f'--config=configs/finetune_images.py:{trained()}', '--config.train.steps=1',
                                '--config.optimizer.schedule.warmup_steps=0', '--config.data.train=train[:32]',
                                '--config.optimizer.learning_rate=0.0', '--config.optimizer.average_decay=0.0',
                                '--config.evals.valid.every_steps=0', f'--workdir={workdir}')
        self.assertEqual(done.code, 0, done.err)
        self.assertIn('fresh ones in head/bias, head/kernel', done.out)
        there, here = (runs.load(folder) for folder in (trained(), workdir))
        params = dict(here.params)
        self.assertEqual(params.pop('head')['kernel'].shape, (8, 10))
        self.assertEqual(set(params), set(there.params['encoder']))
        jax.tree.map(np.testing.assert_array_equal, params, dict(there.params['encoder']))
        paths = experiments.save_digits(self.folder, range(2))
        answered = experiments.call('predict', f'--workdir={workdir}', stdin='\n'.join(map(str, paths)).encode())
        self.assertRegex(answered.out, r'^\d\t0\.\d{4}\t')

    @pytest.mark.slow
    def test_from_scratch_and_by_the_config_of_all_classifiers(self):
        for number, (config, arguments, said) in enumerate((
                ('finetune_images', ['--config.init_from='], 'state: fresh, seed 0'),
                ('classify', [], 'fresh ones in head/bias, head/kernel'))):
            done = experiments.call('train', f'--config=configs/{config}.py:{trained()}', '--config.train.steps=1',
                                    '--config.optimizer.schedule.warmup_steps=0', *arguments,
                                    f'--workdir={self.folder / str(number)}')
            self.assertEqual(done.code, 0, done.err)
            self.assertIn(said, done.out)

    def test_goes_out_with_its_sinusoids_as_tables(self):
        """And comes in again, with the same predictions."""
        folder, again, given, out = (self.folder / name for name in ('hf', 'again', 'in.npz', 'out.npz'))
        call = lambda *arguments: experiments.call('convert', *arguments)
        done = call(f'--workdir={trained()}', f'--to_hf={folder}')
        self.assertEqual((done.code, done.err), (0, ''))
        self.assertIn('ViTMAEForPreTraining with', done.out)
        self.assertIn('positions as a table: the outputs are the same', done.out)
        done = call(f'--from_hf={folder}', f'--workdir={again}')
        self.assertEqual((done.code, done.err), (0, ''))
        rng = np.random.default_rng(0)
        image, noise = rng.random((3, 1, 8, 8)).astype(np.float32), rng.random((3, 16)).astype(np.float32)
        np.savez(given, pixel_values=image, noise=noise)
        done = call(f'--workdir={again}', f'--verify={given}', f'--out={out}')
        self.assertEqual((done.code, done.err), (0, ''))
        wanted = runs.load(trained()).apply(image=image.transpose(0, 2, 3, 1), noise=noise)
        with np.load(out) as found:
            self.assertEqual(set(found), {'logits', 'mask', 'ids_restore'})
            np.testing.assert_allclose(found['logits'], wanted['pixels'], atol=1e-5)
            np.testing.assert_array_equal(found['mask'], wanted['mask'])
        for arrays, message in ((dict(pixel_values=image), 'and no noise, which says what patches of each image are masked'),
                                (dict(pixel_values=image, noise=noise[0]), r'expected floats \[images, patches\] in noise'),
                                (dict(pixel_values=image, noise=noise[:, 1:]), r'The noise is \[3, 15\] for \[3, 16\] patches'),
                                (dict(pixel_values=np.zeros((1, 1, 12, 12), np.float32), noise=np.zeros((1, 36), np.float32)),
                                 'The decoder has positions for images of 16 patches')):
            np.savez(given, **arrays)
            done = call(f'--workdir={again}', f'--verify={given}', f'--out={out}')
            self.assertEqual((done.code, done.out), (1, ''))
            self.assertRegex(done.err, message)

    @pytest.mark.slow
    def test_a_published_encoder_learns_classes(self):
        """With and without its decoder; the tables of positions are kept as they are."""
        for name in ('vit_mae', 'vit_mae_model'):
            workdir, mine = self.folder / name, self.folder / f'{name}_mine'
            done = experiments.call('convert', f'--from_hf={REFERENCE / name}', f'--workdir={workdir}')
            self.assertEqual((done.code, done.err), (0, ''))
            self.assertIn('configs/classify.py', done.out)
            for number in range(20):
                path = self.folder / 'images' / 'ab'[number % 2] / f'{number}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new('RGB', (12, 12), (12 * number, 255 * (number % 2), 7)).save(path)
            done = experiments.call(
                'train', f'--config=configs/classify.py:{workdir}', f'--config.data.path={self.folder / "images"}',
                '--config.train.steps=3', '--config.data.batch_size=8', '--config.optimizer.schedule.warmup_steps=0',
                '--config.optimizer.learning_rate=0.01', '--config.data.size=12', f'--workdir={mine}')
            self.assertEqual(done.code, 0, done.err)
            there, here = (runs.load(one) for one in (workdir, mine))
            if name == 'vit_mae':  # the other had images of 12x8, and its table is resized
                np.testing.assert_array_equal(here.params['positions']['embedding'],
                                              there.params['encoder']['positions']['embedding'])
            self.assertGreater(np.abs(here.params['norm']['bias'] - there.params['encoder']['norm']['bias']).max(), 0.0)
            done = experiments.call('convert', f'--workdir={mine}', f'--to_hf={self.folder / f"{name}_out"}')
            self.assertRegex(done.out, 'ViTForImageClassification with')

    def test_texts_have_no_patches(self):
        done = experiments.call('train', f'--config=configs/finetune_images.py:{self.trained()}')
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err, 'is a run of transformer.models.gpt:Gpt on data.text.documents:Text, and '
                                   'configs/finetune_images.py learns the classes of images; name a run of a model of images')


if __name__ == '__main__':
    absltest.main()
