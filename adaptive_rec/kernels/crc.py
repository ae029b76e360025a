"""zlib's crc32, fast enough to check every page that is read. The plain twin is `zlib.crc32` itself."""

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

_PART, _PARTS = 256, 4
"""Words of a part, and how many parts are taken at a time: one part's crc need not wait for another's."""


def _ahead_tables():
    """Return, for each byte of a crc, what it becomes as a part of zeros follows it."""
    crc = (np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])).astype(np.uint32)
    for _ in range(0, _PART, 2):
        crc = np.bitwise_xor.reduce([_TABLES[7 - k, (crc >> np.uint32(8 * k)) & 0xFF] for k in range(4)])
    return crc


_AHEAD = _ahead_tables()


@njit(**JIT_INLINE)
def _add_words(crc, one, two):
    t, low8 = _TABLES, np.uint32(0xFF)
    one ^= crc
    return (
        t[7, one & low8] ^ t[6, (one >> np.uint32(8)) & low8] ^ t[5, (one >> np.uint32(16)) & low8]
        ^ t[4, one >> np.uint32(24)] ^ t[3, two & low8] ^ t[2, (two >> np.uint32(8)) & low8]
        ^ t[1, (two >> np.uint32(16)) & low8] ^ t[0, two >> np.uint32(24)]
    )  # fmt: skip


@njit(**JIT_INLINE)
def _add_part(crc, of_part):
    t, low8 = _AHEAD, np.uint32(0xFF)
    crc = (
        t[0, crc & low8] ^ t[1, (crc >> np.uint32(8)) & low8] ^ t[2, (crc >> np.uint32(16)) & low8]
        ^ t[3, crc >> np.uint32(24)]
    )  # fmt: skip
    return crc ^ of_part


@njit(**JIT_PART)
def crc32(words):
    """Return zlib's crc32 of an even number of 32-bit words, eight bytes at a time (Kounavis and Berry, "Novel table lookup-based
    algorithms for high-performance CRC generation", 2008), in four streams."""
    crc, first = np.uint32(0xFFFFFFFF), 0
    while first + _PARTS * _PART <= len(words):
        second, third, fourth = np.uint32(0), np.uint32(0), np.uint32(0)
        for i in range(first, first + _PART, 2):
            crc = _add_words(crc, words[i], words[i + 1])
            second = _add_words(second, words[i + _PART], words[i + _PART + 1])
            third = _add_words(third, words[i + 2 * _PART], words[i + 2 * _PART + 1])
            fourth = _add_words(fourth, words[i + 3 * _PART], words[i + 3 * _PART + 1])
        crc = _add_part(_add_part(_add_part(crc, second), third), fourth)
        first += _PARTS * _PART
    for i in range(first, len(words), 2):
        crc = _add_words(crc, words[i], words[i + 1])
    return crc ^ np.uint32(0xFFFFFFFF)
