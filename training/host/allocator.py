"""Whether the C allocator keeps freed memory for the next use, or returns it to the system.

XLA on CPU allocates and frees its temporaries in every step. Above glibc's thresholds each of them is mapped and faulted in
again, which costs up to a third of a small model's step. Higher thresholds reuse the same pages, in the main thread's heap,
the only one that can grow. (The arenas of other threads end at 64 MB and map larger blocks; a single arena for all threads
would make the compiler's threads wait for each other, and every step search the holes that compilation leaves.)
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4  # malloc.h


def keep_pages():
    """Takes all memory from the heaps and never returns it. Returns False if the C library is not glibc."""
    return _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 << 20})


def give_pages_back():
    """Maps blocks of 1 MiB and more, and returns them when they are freed. Returns False if the C library is not glibc.

    By default glibc raises this threshold to the largest block ever freed, up to 32 MiB; reading a checkpoint of 500 MB then
    leaves 250 MB of holes.
    """
    return _set({M_MMAP_THRESHOLD: 1 << 20})


def _set(wanted):
    if platform.libc_ver()[0] != 'glibc':
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(parameter, value) for parameter, value in wanted.items()])
