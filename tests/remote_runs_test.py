"""A run in a bucket of Google Cloud Storage, on text in a bucket, is the run that a folder holds."""

import json
import subprocess
from unittest import mock

import pytest
from absl.testing import absltest

from configs import classify
from tests import experiments, storage_server
from tests.train_test import LAST_SAVE, ROW_WRITTEN, at, environment, program
from training import lease, storage


@storage_server.needed
@pytest.mark.slow
class RemoteRunTest(experiments.TestCase):
    @mock.patch.multiple(lease, LASTS=10.0, RENEWED_EVERY=3.0)
    @mock.patch.object(lease.Lease, '_guard', lambda self: None)  # a machine that is busy for seconds must not end the tests
    def test_train_killed_and_resumed_then_eval_and_predict(self):
        local, bucket = self.folder / 'run', storage_server.bucket()
        text, run = f'{bucket}/text/*.txt', f'{bucket}/runs/run'
        storage_server.write(f'{bucket}/text/lines.txt', self.text.read_bytes())
        config, place = experiments.tiny(text), storage.path(run)
        self.assertEqual(experiments.train(experiments.tiny(self.text), local)[0], 0)

        killed = subprocess.run(program('kill_at', text, run, json.dumps([LAST_SAVE])), env=environment(), capture_output=True,
                                text=True, check=False)
        self.assertEqual(killed.stdout.split(), ['-9'], killed.stderr)
        self.assertNotEmpty((place / '.lease').read_text())  # it is still held, and expires
        self.assertNotEqual((place / 'metrics.jsonl').read_bytes(), experiments.metrics(local))

        def second():
            with self.assertRaisesRegex(ValueError, f'^Another process is training in {run}; wait for it, or give another '):
                experiments.train(config, run)
            refused.append(True)

        refused = []
        with at(ROW_WRITTEN, second):
            code, out = experiments.train(config, run)
        self.assertEqual((code, refused), (0, [True]), out)
        self.assertIn('resumed from step 3', out)
        self.assert_same(place, local)
        self.assertStartsWith((place / 'plots' / 'loss.png').read_bytes(), b'\x89PNG')
        self.assertLen([path for path in place.iterdir() if path.name.startswith('events.')], 2)
        self.assertIn('finished at step 7', experiments.train(config, run)[1])

        self.overwrite_newest(place)
        with mock.patch('sys.stderr') as stderr:
            self.assertEqual(experiments.train(config, run)[0], 0)
        said = ''.join(call.args[0] for call in stderr.write.call_args_list)
        self.assertIn('moved to damaged; resuming from 6\n', said)
        self.assertTrue((place / 'damaged' / '7' / 'state').exists())
        self.assert_same(place, local)

        for arguments in (['--split=valid'], [f'--path={self.text}']):
            ours, theirs = (experiments.said(experiments.call('eval', f'--workdir={one}', *arguments)) for one in (run, local))
            self.assertEqual(ours, theirs)
        there = experiments.said(experiments.call('eval', f'--workdir={run}', f'--path={bucket}/text/lines.txt'))
        self.assertEqual(there | {'split': ''}, ours | {'split': ''})
        ours, theirs = (experiments.call('predict', f'--workdir={one}', '--tokens=4', stdin=b'key').out for one in (run, local))
        self.assertNotEmpty(ours.strip())
        self.assertEqual(ours, theirs)
        self.assertEqual(*(classify.get_config(str(one)).model for one in (run, local)))
        bad = f'{bucket}/bad.txt'
        self.assert_named(bad, 'predict', f'--workdir={local}', f'--input={bad}')
        self.assert_named(bad, 'eval', f'--workdir={local}', f'--path={bad}')
        self.assert_named(bad, 'train', f'--config.data.path={bad}', f'--workdir={self.folder / "bad"}')

    def assert_named(self, name, script, *arguments):
        """That a command refuses an object that is no text by its name, not by that of its copy."""
        storage_server.write(name, b'\xff\x00')
        done = experiments.call(script, *arguments)
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err.splitlines()[-1], f"^{script}.py: (The input )?'?{name}'? is no")

    def assert_same(self, place, local):
        """That a run in a bucket has the metrics and the newest checkpoint of a local one."""
        copy = storage.copied(place, {'damaged'}.__contains__)
        self.assertEqual(experiments.metrics(copy), experiments.metrics(local))
        self.assertEqual(experiments.bits(copy), experiments.bits(local))

    def overwrite_newest(self, place):
        """Damages the arrays of the newest step."""
        for path in (place / 'checkpoints' / '7' / 'state').glob('d/*'):
            content = path.read_bytes()
            path.write_bytes(content[:len(content) // 2] + bytes(64) + content[len(content) // 2 + 64:])


if __name__ == '__main__':
    absltest.main()
