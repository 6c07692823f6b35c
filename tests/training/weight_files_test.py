"""Named arrays in .safetensors files."""

import json
import pathlib
import resource
import struct

import numpy as np
from absl.testing import absltest

from training import weight_files


class WeightFilesTest(absltest.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)

    def test_a_full_disk_is_an_error_of_the_file_system(self):
        """As cli.py says those in a sentence. A limit on the size of files stands for the end of the disk."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # Python ignores the signal
        try:
            with self.assertRaisesRegex(OSError, r'^model.safetensors cannot be written \(.*\).$'):
                weight_files.write(self.folder, {'a': np.zeros(100_000, np.float32)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def test_types_that_numpy_lacks_are_refused_by_name(self):
        for kind in ('F8_E4M3', 'F8_E5M2', 'F4'):
            size = 2 if kind == 'F4' else 4
            head = json.dumps({'a': {'dtype': kind, 'shape': [4], 'data_offsets': [0, size]},
                               'b': {'dtype': 'BF16', 'shape': [1], 'data_offsets': [size, size + 2]}}).encode()
            (self.folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(head)) + head + bytes(size + 2))
            found = weight_files.open_all(self.folder, lambda shape, kind, load: load)
            self.assertEqual(found['b']().tolist(), [0])
            with self.assertRaisesRegex(ValueError, f"model.safetensors has 'a' in {kind}, which is not read; save it in F32"):
                found['a']()


if __name__ == '__main__':
    absltest.main()
