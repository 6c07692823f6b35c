"""Recorded models of Hugging Face transformers (tests/reference), for the tests of what is done with them."""

import json
import pathlib
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from tests import experiments

convert = experiments.script('convert')
REFERENCE = pathlib.Path(__file__).parent / 'reference'


def case(name):
    """{group: {name: array}} of what was recorded: input, output, direction, gradient, and '' for the rest."""
    found = {}
    with np.load(REFERENCE / name / 'case.npz') as file:
        for key, array in file.items():
            group, _, rest = key.rpartition('/')
            found.setdefault(group, {})[rest] = array
    return found


def end_of(name):
    return convert.opened(REFERENCE / name)[1]['eos_token_id']


class TestCase(experiments.TestCase):
    """Folders in, runs, and folders out."""

    def hugging_face(self, name='gpt2', weights=None, **config):
        """A copy of a recorded folder with another config, or other weights."""
        folder = self.folder / f'{name}_hf'
        shutil.copytree(REFERENCE / name, folder)
        (folder / 'case.npz').unlink()
        settings = json.loads((folder / 'config.json').read_text()) | config
        (folder / 'config.json').write_text(json.dumps({key: x for key, x in settings.items() if x != 'absent'}))
        if weights:
            save_file(weights(load_file(folder / 'model.safetensors')), folder / 'model.safetensors')
        return folder

    def convert(self, *arguments):
        done = experiments.call('convert', *arguments)
        self.assertEqual((done.code, done.err), (0, ''))
        return done.out

    def assert_refused(self, message, *arguments):
        done = experiments.call('convert', *arguments)
        self.assertEqual((done.code, done.out), (1, ''), done.err)
        self.assertRegex(done.err, message)
        self.assertNotIn('Traceback', done.err)
        if any(argument.startswith('--from_hf') for argument in arguments):
            self.assertFalse((self.folder / 'run').exists())  # nothing half written
