"""docs/map.md says where everything is."""

import pathlib
import re

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAP = (ROOT / 'docs' / 'map.md').read_text()
ROOMS = dict(re.findall(r'^\| `([a-z0-9/]+/)` \| (.*) \|$', MAP.partition('| room |')[2], re.MULTILINE))
PACKAGES = 'transformer', 'vit', 'data', 'training', 'display'


def modules():
    """(room, module) of every module."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob('*.py')):
            name = path.relative_to(ROOT).as_posix().removesuffix('.py')
            if path.stem != '__init__':
                yield f'{name.rpartition("/")[0]}/', path.stem


class MapTest(parameterized.TestCase):
    @parameterized.parameters(*modules())
    def test_names_every_module(self, room, module):
        if module != 'contracts' or room == 'training/':  # what evaluators and readers ask of the data
            self.assertRegex(ROOMS[room], rf'`{module}`')

    def test_names_nothing_that_is_not_there(self):
        for room, text in ROOMS.items():
            for module in re.findall('`([a-z0-9_/]+)`', text):
                self.assertTrue((ROOT / room / f'{module}.py').is_file(), f'{room}{module}')
        for path in re.findall(r'`((?:transformer|vit|data|training|configs|benchmarks)/[\w/]+\.py)`', MAP):
            self.assertTrue((ROOT / path).is_file(), path)

    def test_folders_hold_one_topic(self):
        for room in ROOMS:
            self.assertLessEqual(len([path for path in (ROOT / room).glob('*.py') if path.stem != '__init__']), 16, room)


if __name__ == '__main__':
    absltest.main()
