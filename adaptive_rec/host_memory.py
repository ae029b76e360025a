"""How the process holds on to host memory."""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""

KEPT_BYTES = 1 << 30
LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc allows."""


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory (up to 1 GiB, of arrays of up to 32 MiB) for the next array.

    By default it gives large arrays back to the system and gets them anew, page by page, in every step: thousands of page
    faults, each of which also stops the other threads for a moment. Returns whether it was asked: glibc only, and not where the
    user has set one of its variables `MALLOC_*`.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has no such thing
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
