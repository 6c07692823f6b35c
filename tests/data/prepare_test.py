import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized

from data import prepare
from data.sources import tfds as tfds_sources
from tests.data import tfds_builders  # noqa: F401  registers them

ROOT = Path(__file__).parents[2]


class PrepareTest(parameterized.TestCase):
    def texts(self, name):
        return tfds_sources.texts(name, str(self.folder), '')

    def test_twice(self):
        for _ in range(2):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                prepare.main(['heed_text', f'--data_dir={self.folder}'])
            self.assertEndsWith(out.getvalue(), f'heed_text is prepared in {self.folder}/heed_text/1.0.0\n')
            if not _:
                written = {path: path.stat().st_mtime_ns for path in self.folder.rglob('*')}
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.folder.rglob('*')}, written)

    def test_part_of_a_copy(self):
        (self.folder / 'heed_text' / '1.0.0').mkdir(parents=True)
        with self.assertRaisesRegex(ValueError, '/heed_text/1.0.0 exists but is not a complete data set; move it away and run'):
            prepare.prepare('heed_text', str(self.folder))

    def test_files_opened_through_tensorflow(self):
        prepare.prepare('heed_files', str(self.folder))
        self.assertEqual(b''.join(self.texts('heed_files')('train').raw()).decode(), 'né\r\nlast' * 2)

    @parameterized.parameters(
        ('heed_remote', '127.0.0.1 cannot be reached; run this with a network, or run it on another machine and copy its '
         'folder heed_remote/1.0.0 to /.*/heed_remote/1.0.0.$'),
        ('heed_manual', 'heed_manual has to be downloaded by hand: Manual directory .*Ask for it.$'),
        ('heed_tensorflow', 'The builder of heed_tensorflow calls tensorflow.strings, and this prepares without TensorFlow; '
         'where that is installed run tfds build heed_tensorflow --file_format=array_record, and copy its folder'),
        ('heed_pages/lang', 'heed_pages/lang cannot be prepared: BuilderConfig lang not.*Known configurations: short, long.$'),
        ('heed_text:2.0.0', 'heed_text:2.0.0 cannot be prepared: Dataset heed_text cannot be loaded .*2.0.0, only: 1.0.0'),
        ('heed_txet', 'TFDS knows no data set .heed_txet.; did you mean heed_text'),
        ('heed text', 'is no name of a data set'),
    )  # fmt: skip
    @pytest.mark.slow
    def test_what_cannot_be_prepared(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            prepare.prepare(name, str(self.folder))
        with self.assertRaises(tfds_sources.NotPrepared if ' ' not in name else ValueError):
            tfds_sources.find(name, str(self.folder))

    def test_command_never_imports_tensorflow(self):
        (self.folder / 'tensorflow.py').write_text(f'open({str(self.folder / "imported")!r}, "w")\n')
        environment = os.environ | {'PYTHONPATH': str(self.folder), 'TFDS_DATA_DIR': str(self.folder / 'home')}

        def run(*arguments):
            command = [sys.executable, '-m', 'data.prepare', *arguments]
            return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)

        done = run('heed_images', 'heed_files', '--imports=tests.data.tfds_builders')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / 'home' / 'heed_images' / '1.0.0' / 'features.json').exists())
        self.assertFalse((self.folder / 'imported').exists())
        done = run('heed_images', '--imports=no.such')
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "prepare.py: --imports=no.such cannot be imported: there is no module 'no'.\n")


if __name__ == '__main__':
    absltest.main()
