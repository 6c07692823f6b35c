"""What docs/ says is there: files, modules, expressions, commands in Python."""

import os
import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

from training.config import resolve
from transformer.attention.masks.algebra import Mask
from transformer.attention.multi_head import Mechanism  # which knows all of them
from transformer.attention.positions.base import Positions
from transformer.attention.scores import Score

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = {path.name: path.read_text() for path in sorted((ROOT / 'docs').glob('*.md'))}
KINDS = {'Scores': Score, 'Masks': Mask, 'Positions': Positions, 'Cheaper attention': Mechanism}


def sections(text):
    """(title, text) of every section."""
    return [part.partition('\n')[::2] for part in re.split('^## ', text, flags=re.MULTILINE)[1:]]


def expressions():
    """(expression, class) of every value in the last column of a table of docs/attention.md whose section is of one class."""
    for title, text in sections(DOCS['attention.md']):
        kind = next((kind for name, kind in KINDS.items() if title.startswith(name)), None)
        for row in re.findall(r'^\|(.*)\|$', text, re.MULTILINE) if kind else ():
            column = re.split(r'(?<!\\)\|', row)[-1].replace(r'\|', '|')
            for one in re.findall('`([^`]*)`', column):
                if not one.startswith('positions='):
                    yield one, kind


class DocsTest(parameterized.TestCase):
    @parameterized.parameters(*DOCS)
    def test_files_and_modules_are_there(self, name):
        for path in re.findall(r'`([\w./]+\.py)`', DOCS[name]):
            places = [ROOT / path, ROOT / 'transformer/attention' / path]
            self.assertTrue(any(place.is_file() for place in places), path)
        for module in re.findall(r'\b((?:transformer|vit|data|training|benchmarks)(?:\.[a-z_]+)+)\.[a-z_]+\(', DOCS[name]):
            self.assertTrue((ROOT / f'{module.replace(".", "/")}.py').is_file(), module)

    @parameterized.parameters(*expressions())
    def test_expressions_are_what_a_config_takes(self, expression, kind):
        self.assertIsInstance(resolve.parse(expression, kind, 'model'), kind)

    def test_python_draws_what_it_says(self):
        text = DOCS['attention.md']
        blocks = re.findall('```python\n(.*?)```', text, re.DOTALL) + re.findall('^python -c "(.*)"', text, re.MULTILINE)
        self.assertLen(blocks, 2)
        before, folder = os.getcwd(), self.enter_context(tempfile.TemporaryDirectory())
        self.addCleanup(os.chdir, before)
        os.chdir(folder)
        for block in blocks:
            exec(block, {})
            drawn, = re.findall(r"savefig\('(.*?)'\)", block)
            self.assertGreater(os.path.getsize(drawn), 1000)


if __name__ == '__main__':
    absltest.main()
