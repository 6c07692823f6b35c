import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tests.marks import slow_but
from training.config import cli

PROGRAM = '''"""What the script does."""
import sys
from absl import flags
from training import workdir
from training.config import cli
flags.DEFINE_string('workdir', '', 'a folder')
{help}
def main(config, name):
    {body}
if __name__ == '__main__':
    cli.run(main, config='{config}')
'''
CONFIG = '''"""What the config is for."""
import ml_collections
def get_config(variant=''):
    return ml_collections.ConfigDict(dict(variant=variant, steps=10, model=dict(layers=2, bias=True))).lock()
'''


@slow_but('test_a_mistake_is_one_sentence_and_exit_code_1', 'field', 'value', 'flag')
class ScriptTest(parameterized.TestCase):
    def run_script(self, *arguments, body='print(config.model.layers, config.variant, name); return 3', help=''):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        self.config = root / 'own.py'
        self.config.write_text(CONFIG)
        (root / 'script.py').write_text(PROGRAM.format(body=body, help=help, config=self.config))
        arguments = [a.replace('OWN', str(self.config)) for a in arguments]
        return subprocess.run(
            [sys.executable, str(root / 'script.py'), *arguments], capture_output=True, text=True, check=False,
            env=os.environ | {'PYTHONPATH': str(cli.ROOT)})

    def test_flags_override_the_config_and_the_result_is_the_exit_code(self):
        done = self.run_script('--config=OWN:wide', '--config.model.layers=5', '--workdir', 'x')
        self.assertEqual((done.returncode, done.stderr), (3, ''))
        self.assertEqual(done.stdout, f'5 wide {self.config}:wide\n')
        done = self.run_script('--config.steps=10', '--noconfig.model.bias', '--workdir=x', body='print(cli.typed(config))')
        self.assertEqual(done.stdout, "{'steps': 10, 'model.bias': False}\n")  # also what is so anyway

    @parameterized.named_parameters(
        ('field', ['--config.model.layer=5'], "There is no field 'layer' in config.model; did you mean 'layers'"),
        ('off', ['--noconfig.model.bais'], "There is no field 'bais' in config.model; did you mean 'bias'"),
        ('group', ['--config.modle.layers=5'], "There is no field 'modle' in config; did you mean 'model'"),
        ('value_of_a_group', ['--config.model=5'], '--config.model is a group of fields'),
        ('value', ['--config.model.layers=two'], '--config.model.layers'),
        ('flag', ['--wokdir=x'], 'wokdir'), ('word', ['x'], "'x' is not a flag"),
        ('file', ['--config=none.py'], "There is no config file 'none.py'"))
    def test_a_mistake_is_one_sentence_and_exit_code_1(self, arguments, message):
        done = self.run_script(*arguments)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertStartsWith(done.stderr, 'script.py: ')
        self.assertIn(message, done.stderr)
        self.assertLen(done.stderr.splitlines(), 1)

    @pytest.mark.slow
    def test_what_nobody_expected_keeps_its_traceback(self):
        expected = self.run_script(body="workdir.given('')")
        self.assertEqual((expected.returncode, len(expected.stderr.splitlines())), (1, 1))
        for body in ("int('x')", "{}['x']"):  # a ValueError too, but none that a `raise` of ours explains
            self.assertIn('Traceback', self.run_script(body=body).stderr)

    @pytest.mark.slow
    def test_help_of_a_config_lists_its_fields_and_help_alone_the_configs(self):
        of_config = self.run_script('--config=OWN', '--help')
        self.assertEqual(of_config.returncode, 0)
        for part in ('What the config is for.', '--config.model.layers=2', '--config.steps=10'):
            self.assertIn(part, of_config.stdout)
        alone = self.run_script('--help', help="cli.answer_help(config='x'); assert 'jax' not in sys.modules")
        self.assertEqual(alone.returncode, 0)
        for part in ('What the script does.', '--workdir: a folder', 'configs/quickstart.py: '):
            self.assertIn(part, alone.stdout)


    def test_help_of_a_config_comes_before_the_imports_that_follow(self):
        done = self.run_script('--config=OWN', '--help', help="cli.answer_help(config='x'); print('imports follow')")
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertIn('--config.model.layers=2', done.stdout)
        self.assertNotIn('imports follow', done.stdout)

    @parameterized.parameters(
        ('training/part.py', True), ('env/lib/python3.12/site-packages/part.py', False), ('env/lib/part.py', False))
    def test_only_files_of_the_repository_speak_to_the_user(self, name, expected):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder).resolve() / name
            file.parent.mkdir(parents=True)
            file.write_text("raise ValueError('a sentence')\n")
            with (mock.patch.object(cli, 'ROOT', pathlib.Path(folder).resolve()), mock.patch.object(sys, 'argv', ['x.py']),
                  mock.patch.object(sys, 'prefix', f'{folder}/env'), mock.patch.dict(os.environ, HEED_TRACEBACK=''),
                  self.assertRaises(SystemExit if expected else ValueError)):
                cli.run(lambda: runpy.run_path(str(file)))


class LoadConfigTest(parameterized.TestCase):
    def test_a_file_of_the_repository_is_found_from_anywhere(self):
        config, text = cli.load_config('configs/quickstart.py')
        self.assertTrue(config.is_locked)
        self.assertIn('standard library', text)

    def test_an_unknown_variant_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no variant 'huge'"):
            cli.load_config('configs/gpt_char.py:huge')

    def test_a_file_without_get_config_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'no get_config'):
            cli.load_config('configs/__init__.py')


if __name__ == '__main__':
    absltest.main()
