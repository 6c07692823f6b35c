"""Keeps the C allocator from returning large temporaries to the system after every use.

XLA on CPU allocates and frees its temporaries in every step; above glibc's thresholds each one is mapped and faulted in
again, which costs up to a third of a small model's step. Higher thresholds let the same pages be used again.
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # malloc.h


def keep_pages():
    """Takes all memory from one heap and keeps it; False where the C library is not glibc.

    One arena, because the others are of 64 MB and map what is larger."""
    if platform.libc_ver()[0] != 'glibc':
        return False
    libc = ctypes.CDLL(None)
    wanted = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 << 20}
    return all([libc.mallopt(parameter, value) for parameter, value in wanted.items()])
