"""Allocation of arrays that are read and written at random rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE_BYTES = 64

BLOCK_BYTES = 4096
"""What a disk reads at a time. Memory that is read and written past the system's cache starts on a multiple of it."""


def zeros(shape: tuple[int, ...], dtype: DTypeLike, alignment: int = CACHE_LINE_BYTES) -> NDArray[Any]:
    """Return an array of zeros that starts on a multiple of so many bytes: on a cache line, so that a row of 64 bytes costs one
    line and not two.

    Linux provides its memory on first write, and in huge pages: NumPy requests them (torch does not), and random rows are read a
    third faster from them.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + alignment, dtype=np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size].view(dtype).reshape(shape)
