"""vit/readers/images.py: what it finds in folders (the rest is in tests/predict_test.py)."""

from absl.testing import absltest

from data.images import decoding
from vit.readers import images


class FilesTest(absltest.TestCase):
    def test_a_folder_is_searched_for_every_kind_of_file_that_training_reads(self):
        self.assertEqual(images.SUFFIXES, decoding.SUFFIXES)


if __name__ == '__main__':
    absltest.main()
