"""Whether the C allocator keeps what is free for the next use, or gives it back to the system.

XLA on CPU allocates and frees its temporaries in every step; above glibc's thresholds each one is mapped and faulted in
again, which costs up to a third of a small model's step. Higher thresholds let the same pages be used again, in the heap
that can grow: the main thread's. (The arenas of other threads end at 64 MB and map what is larger; one arena for all
threads makes the compiler's wait for each other, and a step search the holes that a compilation leaves.)
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4  # malloc.h


def keep_pages():
    """Takes memory from the heaps and keeps it there; False where the C library is not glibc."""
    return _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 << 20})


def give_pages_back():
    """Maps whatever has 1 MiB, and gives it back when it is free; False where the C library is not glibc.

    By itself glibc raises this threshold to the largest block that was ever freed, up to 32 MiB: reading a checkpoint of 500 MB
    then leaves 250 MB of holes.
    """
    return _set({M_MMAP_THRESHOLD: 1 << 20})


def _set(wanted):
    if platform.libc_ver()[0] != 'glibc':
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(parameter, value) for parameter, value in wanted.items()])
