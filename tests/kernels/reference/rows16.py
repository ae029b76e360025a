"""Plain twin of `rows16.py`, in NumPy: whole arrays, and the two neighbours of a value found by looking."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widened(table: NDArray[Any]) -> NDArray[Any]:
    """What rows hold: bit patterns of bfloat16 (uint16) and half precision (int16) as float32, floats as they are."""
    if table.dtype == np.uint16:
        return (table.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return table.view(np.float16).astype(np.float32) if table.dtype == np.int16 else table


def narrowed(values: NDArray[Any], random: NDArray[np.uint32] | np.uint32, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values rounded to what an array of `dtype` can hold, up where the random bits say so."""
    if dtype not in (np.uint16, np.int16):
        return values.astype(dtype)
    below = _towards_zero(np.abs(values.astype(np.float32)), dtype)
    gap = _spacing(below, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        share = (np.abs(values) - widened(below)).astype(np.float64) / gap
    bits = _bits(below, dtype)
    up = np.floor(share * np.exp2(bits)) + (random >> (32 - bits)) >= np.exp2(bits)
    signed = (below.view(np.uint16) + up) | np.where(np.signbit(values), np.uint16(0x8000), np.uint16(0))
    nan = np.uint16(0x7FC0 if dtype == np.uint16 else 0x7E00)
    return np.where(np.isnan(values), nan, signed).astype(np.uint16).view(dtype)


def overflows(table: NDArray[Any], r: int) -> bool:
    return table.dtype == np.int16 and not bool(np.isfinite(widened(table[r])).all())


def step_dice(seed: int, step: int) -> int:
    mask, factor = 2**64 - 1, 0xD6E8FEB86659FD93
    x = (seed * 0x9E3779B97F4A7C15 + step) & mask
    return ((x ^ (x >> 32)) * factor) & mask


def row_dice(step_bits: int, row: int) -> int:
    mask, factor = 2**64 - 1, 0xD6E8FEB86659FD93
    x = (step_bits + row) & mask
    x = ((x ^ (x >> 32)) * factor) & mask
    x = ((x ^ (x >> 32)) * factor) & mask
    return x >> 32


def dice(row_bits: int, d: int) -> int:
    mask = 2**32 - 1
    x = (row_bits + d * 0x9E3779B9) & mask
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & mask
    x = ((x ^ (x >> 15)) * 0x846CA68B) & mask
    return x ^ (x >> 16)


def _infinity(dtype: np.dtype[Any]) -> int:
    return 0x7F80 if dtype == np.uint16 else 0x7C00


def _towards_zero(magnitude: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The largest number of 16 bits that is not above each magnitude."""
    patterns = np.arange(_infinity(dtype) + 1, dtype=np.uint16).view(dtype)
    return patterns[np.searchsorted(widened(patterns), np.nan_to_num(magnitude, nan=0.0), side="right") - 1]


def _spacing(below: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Distance to the next larger number, had the format no largest one."""
    mantissa_bits, smallest = (7, -126) if dtype == np.uint16 else (10, -14)
    exponent = np.where(widened(below) == 0, smallest, np.frexp(widened(below).astype(np.float64))[1] - 1)
    return np.exp2(np.maximum(exponent, smallest) - mantissa_bits)


def _bits(below: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.uint32]:
    """How many random bits the compiled code takes, from above."""
    if dtype == np.uint16:
        return np.full(below.shape, 16, dtype=np.uint32)
    return np.where(widened(below) < 2.0**-14, 20, 13).astype(np.uint32)
