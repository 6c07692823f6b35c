import platform
import resource
import subprocess
import sys
from unittest import mock

import pytest
from absl.testing import absltest

from training.host import allocator

PROGRAM = """
import ctypes, resource, statistics, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would be few faults
import ml_collections
from training.host import machine
machine.prepare(ml_collections.ConfigDict({'allocator': sys.argv[1] == 'keep', 'deterministic': False}))
import jax
import jax.numpy as jnp
import numpy as np
from training import mesh as meshes
# a temporary of 64 MiB and more: what the arenas of other threads would map anew each time
step = jax.jit(lambda x: (jnp.abs(x[0][:, None] + x[0]) @ x[0]).sum())
batch, mesh, faults = {'x': np.ones((8, 4200), np.float32)}, meshes.make(1), []
assert batch['x'].nbytes > meshes.AT_ONCE
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(meshes.put(batch, mesh)['x']).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(faults))  # one of the later steps may be the first on its thread
"""

# What is freed between blocks that stay, after a block of 30 MiB was.
HOLES = """
import sys
import numpy as np
from training.host import allocator
if sys.argv[1] == 'give':
    assert allocator.give_pages_back()
del (first := [np.ones(30 << 20, np.uint8)])[:]
rows, kept = [], []
for _ in range(10):
    rows.append(np.ones(16 << 20, np.uint8))
    kept.append(np.ones(64 << 10, np.uint8))
rows.clear()
with open('/proc/self/statm') as file:
    print(int(file.read().split()[1]))
"""


class AllocatorTest(absltest.TestCase):
    @pytest.mark.slow
    def test_temporaries_of_compiled_programs_use_the_same_pages_again(self):
        if platform.libc_ver()[0] != 'glibc':
            self.assertFalse(allocator.keep_pages())
            return
        faults = {mode: float(subprocess.check_output([sys.executable, '-c', PROGRAM, mode])) for mode in ('keep', 'plain')}
        pages = 4 * 4200 * 4200 // resource.getpagesize()
        self.assertLess(faults['keep'], pages / 20)
        self.assertGreater(faults['plain'], pages / 2)  # or there would be nothing to gain

    def test_holes_go_back_to_the_system(self):
        if platform.libc_ver()[0] != 'glibc':
            self.assertFalse(allocator.give_pages_back())
            return
        held = {mode: int(subprocess.check_output([sys.executable, '-c', HOLES, mode])) for mode in ('give', 'plain')}
        self.assertGreater((held['plain'] - held['give']) * resource.getpagesize(), 120 << 20)

    def test_other_libraries_are_left_alone(self):
        with mock.patch('platform.libc_ver', return_value=('musl', '1')), mock.patch('ctypes.CDLL') as library:
            self.assertFalse(allocator.keep_pages())
            self.assertFalse(allocator.give_pages_back())
            library.assert_not_called()


if __name__ == '__main__':
    absltest.main()
