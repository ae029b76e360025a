"""The plain twin of the hash of texts: XXH64 with seed 0 on whole numbers of Python."""

from __future__ import annotations

MASK = (1 << 64) - 1
PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (
    11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261,
)  # fmt: skip


def hash_text(text: bytes) -> int:
    """Return the hash of a text, from 0 to 2**64 - 1."""
    stripes = len(text) // 32
    lanes = [(PRIME_1 + PRIME_2) & MASK, PRIME_2, 0, -PRIME_1 & MASK]
    for stripe in range(stripes):
        for lane in range(4):
            lanes[lane] = _round(lanes[lane], _number(text, 32 * stripe + 8 * lane, 8))
    value = PRIME_5
    if stripes:
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            value = (value ^ _round(0, lane)) * PRIME_1 + PRIME_4 & MASK
    value = value + len(text) & MASK
    at = 32 * stripes
    while len(text) - at >= 8:
        value = _rotated(value ^ _round(0, _number(text, at, 8)), 27) * PRIME_1 + PRIME_4 & MASK
        at += 8
    if len(text) - at >= 4:
        value = _rotated(value ^ _number(text, at, 4) * PRIME_1 & MASK, 23) * PRIME_2 + PRIME_3 & MASK
        at += 4
    for byte in text[at:]:
        value = _rotated(value ^ byte * PRIME_5 & MASK, 11) * PRIME_1 & MASK
    value = (value ^ value >> 33) * PRIME_2 & MASK
    value = (value ^ value >> 29) * PRIME_3 & MASK
    return value ^ value >> 32


def _number(text: bytes, at: int, size: int) -> int:
    return int.from_bytes(text[at : at + size], "little")


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * PRIME_2 & MASK, 31) * PRIME_1 & MASK
