"""Keeps the C allocator from returning large temporaries to the system after every use.

XLA on CPU allocates and frees its temporaries in every step; above glibc's thresholds each one is mapped and faulted in
again, which costs up to a third of a small model's step. Higher thresholds let the same pages be used again, in the heap
that can grow: the main thread's. (The arenas of other threads end at 64 MB and map what is larger; one arena for all
threads makes the compiler's wait for each other, and a step search the holes that a compilation leaves.)
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


def keep_pages():
    """Takes memory from the heaps and keeps it there; False where the C library is not glibc."""
    if platform.libc_ver()[0] != 'glibc':
        return False
    libc = ctypes.CDLL(None)
    wanted = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 << 20}
    return all([libc.mallopt(parameter, value) for parameter, value in wanted.items()])
