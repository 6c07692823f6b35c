"""The command line itself: an immediate --help, fields as flags, and the default workdir."""

import os
import subprocess
import sys

import pytest
from absl.testing import absltest, parameterized

from tests import experiments


def shell(code, cwd=experiments.ROOT):
    return subprocess.run([sys.executable, '-c', code], cwd=cwd, capture_output=True, text=True, timeout=600,
                          env=os.environ | {'PYTHONPATH': str(experiments.ROOT)})


class HelpTest(experiments.TestCase):

    @parameterized.parameters('train', 'eval', 'predict', 'sweep')
    def test_help_is_immediate(self, name):
        code = (f'import runpy, sys\nsys.argv = ["{name}.py", "--help"]\n'
                f'try:\n    runpy.run_path("{name}.py", run_name="__main__")\n'
                'except SystemExit as end:\n    print(end.code, "jax" in sys.modules, "numpy" in sys.modules)')
        before = os.times()
        done = shell(code)
        after = os.times()
        self.assertEqual(done.stdout.splitlines()[-1], '0 False False', done.stderr)
        used = after.children_user + after.children_system - before.children_user - before.children_system
        self.assertLess(used, 1.0)  # processor time: the machine may be busy
        self.assertIn(f'python {name}.py', done.stdout)
        self.assertIn('--workdir: folder of the run', done.stdout)

    def test_help_lists_the_configs(self):
        done = experiments.call('train', '--help')
        self.assertEqual(done.code, 0)
        self.assertRegex(done.out, r'configs/quickstart.py: A small GPT')
        self.assertNotRegex(done.out, r'configs/(base|converted|__init__).py')  # which train nothing
        self.assertNotIn('base.py', done.out)

    def test_help_of_a_config_lists_its_fields(self):
        done = experiments.call('train', '--config=configs/gpt_char.py:base', '--help')
        self.assertEqual((done.code, done.err), (0, ''))
        for line in ('--config.model.width=384', '--config.train.steps=5000', '--config.model.mask=Causal()',
                     r'--config.evals.samples.prompt=\n', '--config.model.vocab='):
            self.assertIn(line, done.out.splitlines())


class OverrideTest(experiments.TestCase):

    def write_config(self):
        (self.folder / 'mine.py').write_text(
            f'from tests import experiments\n\n\ndef get_config(variant):\n    return experiments.tiny({str(self.text)!r})\n')
        return self.folder / 'mine.py'

    def test_fields_of_every_type(self):
        done = experiments.call(
            'train', f'--config={self.write_config()}', '--config.train.steps', '3', '--config.model.dropout=0',
            '--config.optimizer.learning_rate=1e-4', '--config.model.output_bias=false', '--config.data.tokenizer=Byte()',
            '--config.model.mask=Causal() & Window(size=4)', '--config.model.vocab=300',
            "--config.init_rules=(('a', 'fresh'), ('.*', 'keep'))", '--help')
        self.assertEqual((done.code, done.err), (0, ''))
        for line in ('--config.train.steps=3', '--config.model.dropout=0.0', '--config.optimizer.learning_rate=0.0001',
                     '--config.model.output_bias=False', '--config.data.tokenizer=Byte()', '--config.model.vocab=300',
                     '--config.model.mask=Causal() & Window(size=4)', "--config.init_rules=(('a', 'fresh'), ('.*', 'keep'))"):
            self.assertIn(line, done.out.splitlines())

    def test_the_last_value_counts(self):
        done = experiments.call('train', '-config=configs/gpt_char.py', '--config', str(self.write_config()),
                                '--config.train.steps=1', '--config.train.steps=2', '--help')
        self.assertIn('--config.train.steps=2', done.out.splitlines())
        self.assertIn('--config.model.width=8', done.out.splitlines())

    @pytest.mark.slow
    def test_default_workdir_is_named_after_the_config(self):
        config = self.write_config()
        code = (f'import runpy, sys\nsys.argv = ["train.py", "--config={config}:large", "--config.train.steps=2"]\n'
                f'runpy.run_path("{experiments.ROOT}/train.py", run_name="__main__")')
        done = shell(code, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / 'runs' / 'mine-large' / 'checkpoints' / '2').is_dir())
        self.assertIn('runs/mine-large: trained for 2 steps', done.stdout)

    def test_unexpected_errors_keep_their_traceback(self):
        for body, error in (('return 1 / 0', 'ZeroDivisionError'), ("return int('x')", 'ValueError')):
            (self.folder / 'broken.py').write_text(f'def get_config(variant):\n    {body}\n')
            done = experiments.call('train', f'--config={self.folder / "broken.py"}')
            self.assertEqual(done.code, 1)
            self.assertIn(f'\n{error}', done.err)

    @parameterized.parameters(
        ('def get_config():\n    pass', r'get_config of .* cannot be called with a variant; define get_config\(variant\)'),
        ('get_config = 3', 'get_config of .*mine.py cannot be called with a variant'),
        ('def get_config(variant):\n    pass', 'get_config of .*mine.py returns NoneType; return an ml_collections.ConfigDict'),
        ('def get_config(variant):\n    return {}', 'get_config of .*mine.py returns dict; return an'),
        ("def get_config(variant):\n    raise ValueError(\n        f'No {variant} today; wait.')", 'No large today; wait'))
    def test_a_config_file_of_ones_own_is_told_what_is_wrong(self, code, pattern):
        (self.folder / 'mine.py').write_text(code + '\n')
        done = experiments.call('train', f'--config={self.folder / "mine.py"}:large')
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err, rf'\Atrain.py: {pattern}[^\n]*\n\Z')


if __name__ == '__main__':
    absltest.main()
