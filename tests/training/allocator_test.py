from unittest import mock

from absl.testing import absltest, parameterized

from training import allocator


class AllocatorTest(parameterized.TestCase):
    def test_thresholds_are_taken_by_glibc_and_other_libraries_left_alone(self):
        with mock.patch('platform.libc_ver', return_value=('musl', '1')), mock.patch('ctypes.CDLL') as library:
            self.assertFalse(allocator.keep_pages())
            library.assert_not_called()
        with mock.patch('platform.libc_ver', return_value=('glibc', '2')), mock.patch('ctypes.CDLL') as library:
            library.return_value.mallopt.return_value = 1
            self.assertTrue(allocator.keep_pages())
            self.assertLen(library.return_value.mallopt.mock_calls, 3)
            library.return_value.mallopt.return_value = 0
            self.assertFalse(allocator.keep_pages())


if __name__ == '__main__':
    absltest.main()
