"""Training on data sets of TFDS from end to end."""

import os
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from absl.testing import absltest

from data import prepare
from tests import experiments
from tests.data import tfds_builders  # noqa: F401  registers them


class TfdsTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {'TFDS_DATA_DIR': str(self.folder / 'sets')}))

    @pytest.mark.slow
    def test_a_run_and_its_continuation_end_in_the_same_bits(self):
        prepare.prepare('heed_images')
        workdir = self.folder / 'run'
        config = experiments.changed(experiments.tiny_images(), **{
            'data.source': 'tfds', 'data.name': 'heed_images', 'data.train': 'train', 'data.valid': 'test[:8]', 'data.size': 8,
            'data.channels': 1, 'checkpoint.every_steps': 1})
        code, out = experiments.train(config, workdir)
        self.assertEqual(code, 0, out)
        self.assertRegex(out, 'tfds heed_images, ')
        self.assertNotEmpty(experiments.rows(workdir, 'valid'))
        whole, metrics = experiments.bits(workdir), experiments.metrics(workdir)
        first, *later = experiments.steps(workdir)
        for step in later:
            shutil.rmtree(workdir / 'checkpoints' / str(step))
        code, out = experiments.train(config, workdir)
        self.assertEqual(code, 0, out)
        self.assertIn(f'resumed from step {first}', out)
        self.assertEqual((experiments.bits(workdir), experiments.metrics(workdir)), (whole, metrics))

    def test_not_prepared(self):
        config = self.folder / 'tiny.py'
        config.write_text('from tests import experiments\n\n\ndef get_config(variant):\n    return experiments.tiny_images()\n')
        done = experiments.call('train', f'--config={config}', f'--workdir={self.folder / "run"}', '--config.data.source=tfds',
                                '--config.data.name=mnist')
        self.assertEqual(done.code, 1)
        self.assertEqual(done.err, f'train.py: mnist is not prepared in {self.folder / "sets"}; '
                                   'run python -m data.prepare mnist.\n')
        self.assertFalse((self.folder / 'run').exists())

    @pytest.mark.slow
    def test_no_run_imports_tensorflow_and_others_do_not_import_tfds(self):
        prepare.prepare('heed_images')
        code = ('import sys; from data.images.labelled import Images\n'
                'next(Images(train="train[:64]").open(None).train(0))\n'
                'print("tensorflow_datasets" in sys.modules)\n'
                'batch = next(Images(source="tfds", name="heed_images", train="train").open(None).train(0))\n'
                'print(batch["image"].shape, "tensorflow_datasets" in sys.modules, "tensorflow" in sys.modules)')
        done = subprocess.run([sys.executable, '-c', code], cwd=experiments.ROOT, capture_output=True, text=True, timeout=600)
        self.assertEqual((done.stdout, done.stderr), ('False\n(64, 6, 5, 3) True False\n', ''))


if __name__ == '__main__':
    absltest.main()
