"""What README and docs/ say can be done: links lead somewhere, commands parse, numbers are those of the configs."""

import ast
import pathlib
import re
import shlex
from unittest import mock

from absl.testing import absltest, parameterized

import heed
from tests import experiments
from training.config import cli

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = {path.name: path.read_text() for path in (ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md')))}
SCRIPTS = 'train', 'eval', 'predict', 'convert', 'sweep'


def commands():
    """(file, words) of every command in a block or between backticks that calls one of the scripts."""
    for name, text in TEXTS.items():
        blocks = re.findall(r'^```\w*\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r'`([^`\n]+)`', re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL))
        lines = '\n'.join([*blocks, *inline]).replace('\\\n', ' ').split('\n')
        for line in dict.fromkeys(lines):
            found = re.search(r'(?:^|\| |\s)(?:python |\.venv/bin/python )((?:' + '|'.join(SCRIPTS) + r')\.py\b.*)$', line)
            if found:
                yield name, found[1]


def results():
    """(config, variant, result) of every row of docs/results.md."""
    return re.findall(r'^\| `(\w+)\.py(:\w+)?` \| (.*) \| .* \|$', TEXTS['results.md'], re.MULTILINE)


class ReadmeTest(parameterized.TestCase):
    @parameterized.parameters(*TEXTS)
    def test_links_lead_somewhere(self, name):
        folder = ROOT if name == 'README.md' else ROOT / 'docs'
        for path in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', TEXTS[name]):
            self.assertTrue((folder / path).exists(), path)
        for path in re.findall(r'`((?:configs|docs|tests|benchmarks|transformer|vit|data|training)/[\w/]*\.\w+)`', TEXTS[name]):
            self.assertTrue((ROOT / path).exists() or (ROOT / 'transformer/attention' / path).exists(), path)

    @parameterized.parameters(*commands())
    def test_commands_parse(self, name, command):
        if command.count('"') % 2:  # the end of a command inside of another
            command = command.rstrip('" ')
        script, *arguments = shlex.split(command, comments=True)
        known = {*re.findall(r"DEFINE_\w+\('(\w+)'", (ROOT / script).read_text()), 'config', 'help'}
        given = {word.lstrip('-').partition('=')[0]: word for word in arguments if word.startswith('-')}
        self.assertContainsSubset({flag for flag in given if not flag.startswith('config.')}, known)
        file, _, variant = given.get('config', '--config=configs/quickstart.py').partition('=')[2].partition(':')
        if file.startswith(('FILE', '...')) or script != 'train.py':
            return
        self.assertTrue((ROOT / file).is_file(), file)
        if 'runs/' not in variant:  # else the fields are those of that run
            with experiments.own_flags():
                config, _ = cli.load_config(f'{file}:{variant}' if variant else file)
                cli.override(config, [word for flag, word in given.items() if flag.startswith('config.')])

    def test_python(self):
        """Every call in docs/python.md is one that a run takes."""
        run = mock.create_autospec(heed.Run, instance=True)
        for block in re.findall('```python\n(.*?)```', TEXTS['python.md'], re.DOTALL):
            with mock.patch.object(heed, 'load', mock.create_autospec(heed.load, return_value=run)):
                exec('import heed\n' + block, {'run': run, 'print': lambda *_: None})
        names = re.findall(r'`run\.(\w+)', TEXTS['python.md'])
        self.assertContainsSubset(names, dir(heed.Run))

    @parameterized.parameters(*results())
    def test_results_are_those_of_the_config(self, config, variant, result):
        text = ast.get_docstring(ast.parse((ROOT / 'configs' / f'{config}.py').read_text()))
        if variant:
            self.assertIn(variant.removeprefix(':'), text)
        for number in re.findall(r'\d+(?:[.,]\d+)*', result):
            self.assertIn(number, text)

    def test_numbers_of_the_quickstart_are_those_of_its_config(self):
        text = (ROOT / 'configs' / 'quickstart.py').read_text()
        found = re.findall(r'(?<![a-z]_)bits_per_byte (\d\.\d+)', TEXTS['README.md'])
        self.assertGreaterEqual(len(found), 6)
        for number in found:
            self.assertIn(f'{float(number):.3f}', text)


if __name__ == '__main__':
    absltest.main()
