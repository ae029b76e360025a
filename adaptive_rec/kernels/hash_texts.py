"""This kernel hashes texts to 64 bits by XXH64 with seed 0 (Collet, "xxHash fast digest algorithm", xxhash.com). Plain twin:
`reference/hash_texts.py`.

All arithmetic is modulo 2**64. Names of constants and steps are those of the specification.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE, JIT_PART

PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (
    np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5),
)  # fmt: skip
STRIPE_BYTES = 32


@njit(**JIT)
def hash_texts(data, offsets, hash_U):
    """Hash each text `data[offsets[u] : offsets[u + 1]]`."""
    for u in range(len(hash_U)):
        hash_U[u] = _hash(data, offsets[u], offsets[u + 1])


@njit(**JIT_PART)
def _hash(data, start, end):
    """Return the hash of some bytes."""
    at = start
    if end - start >= STRIPE_BYTES:
        a, b, c, d = PRIME_1 + PRIME_2, PRIME_2, np.uint64(0), np.uint64(0) - PRIME_1
        while at + STRIPE_BYTES <= end:
            a, b = _round(a, _word(data, at, 8)), _round(b, _word(data, at + 8, 8))
            c, d = _round(c, _word(data, at + 16, 8)), _round(d, _word(data, at + 24, 8))
            at += STRIPE_BYTES
        value = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        value = _merged(_merged(_merged(_merged(value, a), b), c), d)
    else:
        value = PRIME_5
    value += np.uint64(end - start)
    while at + 8 <= end:
        value = _rotated(value ^ _round(np.uint64(0), _word(data, at, 8)), 27) * PRIME_1 + PRIME_4
        at += 8
    if at + 4 <= end:
        value = _rotated(value ^ _word(data, at, 4) * PRIME_1, 23) * PRIME_2 + PRIME_3
        at += 4
    while at < end:
        value = _rotated(value ^ np.uint64(data[at]) * PRIME_5, 11) * PRIME_1
        at += 1
    value = (value ^ value >> np.uint64(33)) * PRIME_2
    value = (value ^ value >> np.uint64(29)) * PRIME_3
    return value ^ value >> np.uint64(32)


@njit(**JIT_INLINE)
def _rotated(value, bits):
    """Rotate 64 bits to the left."""
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@njit(**JIT_INLINE)
def _word(data, at, size):
    """Return `size` bytes as a number, the first one lowest."""
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@njit(**JIT_INLINE)
def _round(lane, word):
    return _rotated(lane + word * PRIME_2, 31) * PRIME_1


@njit(**JIT_INLINE)
def _merged(value, lane):
    return (value ^ _round(np.uint64(0), lane)) * PRIME_1 + PRIME_4
