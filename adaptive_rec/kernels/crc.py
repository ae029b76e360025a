"""zlib's crc32, fast enough to check every row that is read. The plain twin is `zlib.crc32` itself."""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT_INLINE, JIT_PART


def _crc_tables():
    table_8X = np.zeros((8, 256), dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0xEDB88320), values >> 1)
    table_8X[0] = values
    for k in range(1, 8):
        table_8X[k] = (table_8X[k - 1] >> 8) ^ table_8X[0][table_8X[k - 1] & 0xFF]
    return table_8X


_TABLES = _crc_tables()


@njit(**JIT_INLINE)
def _word(data, at):
    """Four bytes as a number, the first one lowest."""
    return (
        np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8) | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )  # fmt: skip


@njit(**JIT_PART)
def crc32(data, start, end):
    """Return zlib's crc32 of some bytes, eight at a time (Kounavis and Berry, "Novel table lookup-based algorithms for
    high-performance CRC generation", 2008)."""
    t, low8, at = _TABLES, np.uint32(0xFF), start
    crc = np.uint32(0xFFFFFFFF)
    while at + 8 <= end:
        one, two = crc ^ _word(data, at), _word(data, at + 4)
        crc = (
            t[7, one & low8] ^ t[6, (one >> np.uint32(8)) & low8] ^ t[5, (one >> np.uint32(16)) & low8]
            ^ t[4, one >> np.uint32(24)] ^ t[3, two & low8] ^ t[2, (two >> np.uint32(8)) & low8]
            ^ t[1, (two >> np.uint32(16)) & low8] ^ t[0, two >> np.uint32(24)]
        )  # fmt: skip
        at += 8
    while at < end:
        crc = t[0, (crc ^ np.uint32(data[at])) & low8] ^ (crc >> np.uint32(8))
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)
