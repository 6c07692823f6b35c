import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import ml_collections
from absl.testing import absltest, parameterized

from tests import experiments
from training import workdir
from training.host import machine

CONFIG = experiments.tiny_images()


def changed(**fields):
    config = ml_collections.ConfigDict(CONFIG.to_dict())
    config.update_from_flattened_dict({name.replace('__', '.'): value for name, value in fields.items()})
    return config


class WorkdirTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / 'run'

    def test_a_run_that_is_not_seen_here_is_on_another_disk(self):
        with self.assertRaisesRegex(ValueError, 'is not the same folder at all processes'):
            workdir.require_run(self.folder, patience=0)
        with workdir.create(self.folder, CONFIG):
            workdir.require_run(self.folder, patience=0)

    def test_create_saves_the_config_and_holds_the_folder(self):
        self.assertFalse(workdir.is_run(self.folder))
        with workdir.create(self.folder, CONFIG):
            self.assertTrue(workdir.is_run(self.folder))
            loaded = workdir.load_config(self.folder)
            self.assertTrue(loaded.is_locked)
            self.assertEqual(workdir.as_json(loaded), workdir.as_json(CONFIG))
            with self.assertRaisesRegex(ValueError, 'Another process is training'), workdir.locked(self.folder):
                pass
        with workdir.locked(self.folder):
            pass
        with self.assertRaisesRegex(ValueError, 'has just started'), workdir.create(self.folder, CONFIG):
            pass

    @parameterized.parameters('model.name', 'data.reader', 'evals.valid.evaluator', 'optimizer.schedule.name')
    def test_code_of_others_is_not_imported(self, name):
        with workdir.create(self.folder, CONFIG):
            pass
        content = json.loads((self.folder / 'config.json').read_text())
        *parents, last = name.split('.')
        node = content
        for parent in parents:
            node = node[parent]
        node[last] = 'antigravity.code:Evil'
        (self.folder / 'config.json').write_text(json.dumps(content))
        with self.assertRaisesRegex(ValueError, f"names code that is not Heed's, {name}='antigravity.code:Evil'; if you trust "
                                                'it, set HEED_MODULES=antigravity'):
            workdir.load_config(self.folder)
        self.assertNotIn('antigravity', sys.modules)
        with mock.patch.dict(os.environ, {'HEED_MODULES': 'mine,antigravity'}):
            self.assertEqual(workdir.as_json(workdir.load_config(self.folder)), content)

    def test_code_of_ones_own_config_goes_on(self):
        mine = changed(model__name='mine.models:Gpt')
        with workdir.create(self.folder, mine):
            self.assertEqual(workdir.check_unchanged(self.folder, mine)[0], [])
            with self.assertRaisesRegex(ValueError, "names code that is not Heed's, model.name='mine.models:Gpt'"):
                workdir.check_unchanged(self.folder, CONFIG)

    def test_deep_nesting_is_no_config(self):
        self.folder.mkdir()
        (self.folder / 'config.json').write_text('{"model":' * 100_000)
        with self.assertRaisesRegex(ValueError, 'is not the config of a run'):
            workdir.load_config(self.folder)

    def test_the_lock_ends_with_its_process(self):
        self.folder.mkdir()
        program = ('import os, pathlib, sys; from training import workdir; '
                   'workdir.locked(pathlib.Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)')
        root = pathlib.Path(workdir.__file__).parent.parent
        ended = subprocess.run([sys.executable, '-c', program, str(self.folder)], check=False,
                               env=os.environ | {'PYTHONPATH': str(root)})
        self.assertEqual(ended.returncode, -9)
        with workdir.locked(self.folder):
            pass

    def test_a_folder_of_something_else_is_refused(self):
        self.folder.mkdir()
        (self.folder / '.lock').touch()
        self.assertFalse(workdir.is_run(self.folder))
        (self.folder / 'thesis.tex').touch()
        with self.assertRaisesRegex(ValueError, "not a workdir of a run: it has no config.json, but 'thesis.tex'"):
            workdir.is_run(self.folder)
        with self.assertRaisesRegex(ValueError, 'is a file; give a folder'):
            workdir.is_run(self.folder / 'thesis.tex')

    def test_no_path(self):
        with self.assertRaisesRegex(ValueError, 'Give --workdir=DIR'):
            workdir.given('')

    def test_configs_that_cannot_be_read(self):
        self.folder.mkdir()
        with self.assertRaisesRegex(ValueError, 'has no config.json'):
            workdir.load_config(self.folder)
        for broken in ('{"seed": ', '{"model": {"te.sor": {"a": 1}}, "train": {}}'):
            (self.folder / 'config.json').write_text(broken)
            with self.assertRaisesRegex(ValueError, 'is not the config of a run'):
                workdir.load_config(self.folder)

    def test_a_run_of_an_earlier_version_is_refused(self):
        content = workdir.as_json(CONFIG)
        del content['parameter_dtype']
        self.folder.mkdir()
        (self.folder / 'config.json').write_text(json.dumps(content))
        with self.assertRaisesRegex(ValueError, 'config.json is not from this version of the code: The config has no '
                                                'field parameter_dtype; .*; or use the version that made this run'):
            workdir.load_config(self.folder)

    @parameterized.parameters(
        dict(train__steps=20), dict(log__every_steps=1), dict(mesh__data=4), dict(data__workers=2),
        dict(data__reader='a:C'), dict())
    def test_what_may_change_on_resume(self, **fields):
        with workdir.create(self.folder, CONFIG):
            self.assertEqual(workdir.check_unchanged(self.folder, changed(**fields))[0],
                             [name.replace('__', '.') for name in fields if name != 'train__steps'])

    @parameterized.parameters(
        (dict(seed=1), 'seed: 0 there, 1 now'), (dict(model__layers=3), 'model.layers: 1 there, 3 now'),
        (dict(train__microbatches=2, seed=3), 'seed: 0 there, 3 now; train.microbatches: 1 there, 2 now'))
    def test_what_may_not(self, fields, message):
        with workdir.create(self.folder, CONFIG), self.assertRaisesRegex(ValueError, message):
            workdir.check_unchanged(self.folder, changed(**fields))

    def test_environment_says_what_the_bits_depend_on(self):
        self.folder.mkdir()
        workdir.save_environment(self.folder, {'train': 'a'})
        found = json.loads((self.folder / 'environment.json').read_text())
        self.assertEqual((found['platform'], found['devices']), ('cpu', 8))
        self.assertIn('jax', found['packages'])
        self.assertEqual(found['processor'], machine.processor())
        self.assertEqual(found['data'], {'train': 'a'})

    def test_changed_data_and_companions(self):
        self.folder.mkdir()
        workdir.save_environment(self.folder, {'train': 'a', 'valid': 'b'}, {'teacher': 'd'})
        self.assertEqual(workdir.changed(self.folder, {'train': 'a', 'valid': 'b', 'test': 'c'}), [])
        self.assertEqual(workdir.changed(self.folder, {'valid': 'c', 'train': 'a'}), ['valid'])
        workdir.check_same_companions(self.folder, {'teacher': 'd'})
        with self.assertRaisesRegex(ValueError, 'The companion teacher is not the model that it was when the run in .* began'):
            workdir.check_same_companions(self.folder, {'teacher': 'e'})
        workdir.check_same_data(self.folder, {'train': 'a', 'test': 'c'})
        with self.assertRaisesRegex(ValueError, 'The data of train and valid has changed since .* began, or is read '
                                    'differently by this version; restore it, use the version that made the run, or train in'):
            workdir.check_same_data(self.folder, {'train': 'b', 'valid': 'c'})
        for content in ('{}', '{"data": []}', 'x'):
            (self.folder / 'environment.json').write_text(content)
            with self.assertRaisesRegex(ValueError, 'is not the environment of a run'):
                workdir.changed(self.folder, {'train': 'a'})


if __name__ == '__main__':
    absltest.main()
