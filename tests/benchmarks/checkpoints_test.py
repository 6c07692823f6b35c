"""benchmarks/checkpoints.py: two hosts save and restore, by its command, and its sentences."""

import json
import pathlib
import subprocess
import sys

import pytest
from absl.testing import absltest

from tests import experiments


class CheckpointsTest(absltest.TestCase):
    def told(self, *flags):
        done = subprocess.run([sys.executable, '-m', 'benchmarks.checkpoints', *flags], capture_output=True, text=True,
                              cwd=experiments.ROOT, check=False)
        return done.returncode, done.stdout, done.stderr

    @pytest.mark.slow
    def test_two_hosts(self):
        folder = self.create_tempdir().full_path
        code, out, errors = self.told('--gb=0.2', '--processes=2', f'--folder={folder}')
        self.assertEqual(code, 0, errors)
        row = json.loads(out)
        self.assertEqual((row['gb'], row['processes']), (0.2, 2))
        self.assertLess(row['blocked_s'], row['written_s'])
        self.assertGreater(row['restored_s'], 0)
        self.assertGreaterEqual(row['save_peak'], 1)
        self.assertGreaterEqual(row['restore_peak'], 1)
        files = sum(file.stat().st_size for file in pathlib.Path(folder, 'checkpoints', '1').rglob('*') if file.is_file())
        self.assertBetween(files, 0.19e9, 0.21e9)

    @pytest.mark.slow
    def test_numbers_that_cannot_be(self):
        for flags, sentence in ((('--processes=3',), '--processes is 3; the other mesh has half as many parts'),
                                (('--process=0',), '--process need --coordinator=HOST:PORT')):
            code, _, errors = self.told(*flags)
            self.assertEqual(code, 1)
            self.assertIn(sentence, errors)


if __name__ == '__main__':
    absltest.main()
