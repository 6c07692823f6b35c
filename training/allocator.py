"""Keeps the C allocator from returning large temporaries to the system after every use.

XLA on CPU allocates and frees its temporaries in every step; above glibc's thresholds each one is mapped and faulted in
again, which costs up to a third of a small model's step. Higher thresholds let the same pages be used again.
"""

import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
LIMIT = 1 << 30


def keep_pages():
    """Raises glibc's trim, top-pad and mmap thresholds; False where the C library is another one."""
    if platform.libc_ver()[0] != 'glibc':
        return False
    libc = ctypes.CDLL(None)
    return all([libc.mallopt(M_MMAP_THRESHOLD, LIMIT), libc.mallopt(M_TRIM_THRESHOLD, LIMIT),
                libc.mallopt(M_TOP_PAD, 64 << 20)])
