import platform
import resource
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from training import allocator

PROGRAM = """
import sys, threading, resource
from training import allocator
if sys.argv[1] == 'keep':
    assert allocator.keep_pages()
def work():
    for i in range(6):
        if i == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        b'x' * (64 << 20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)  # XLA allocates in threads of its own
thread.start()
thread.join()
"""


class AllocatorTest(absltest.TestCase):
    def test_large_temporaries_use_the_same_pages_again(self):
        if platform.libc_ver()[0] != 'glibc':
            self.assertFalse(allocator.keep_pages())
            return
        faults = {mode: int(subprocess.check_output([sys.executable, '-c', PROGRAM, mode])) for mode in ('keep', 'plain')}
        pages = 4 * (64 << 20) // resource.getpagesize()
        self.assertLess(faults['keep'], pages / 20)
        self.assertGreater(faults['plain'], pages / 2)  # or there would be nothing to gain

    def test_other_libraries_are_left_alone(self):
        with mock.patch('platform.libc_ver', return_value=('musl', '1')), mock.patch('ctypes.CDLL') as library:
            self.assertFalse(allocator.keep_pages())
            library.assert_not_called()


if __name__ == '__main__':
    absltest.main()
