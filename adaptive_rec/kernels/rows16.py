"""These functions read rows of 16 bits as float32 and write them back with stochastic rounding.

NumPy has no bfloat16 and Numba's CPU target no float16, so a table is an array of bit patterns, and the integer type says
which: uint16 is bfloat16, int16 is IEEE half precision. `read` and `write` take float tables as well and are then plain
indexing: a kernel written with them serves every kind of table. The plain twins are in `reference/rows16.py`.

Stochastic rounding picks one of the two neighbours, the nearer one more often, so that the mean is right: many small updates
are kept on average where rounding to the nearest would lose every one of them (Gupta et al., arXiv 1502.02551).
A number that 16 bits hold exactly stays as it is, NaN stays NaN, and what is too large for half precision becomes
infinite: a run that diverges must be noticed, and `overflows` finds these rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from adaptive_rec.kernels.jit import JIT_PART
from adaptive_rec.kernels.row_vectors import subtract_scaled, sum_rows

_PART: Any = JIT_PART

PATTERNS = {"bf16": np.dtype(np.uint16), "fp16": np.dtype(np.int16)}
NEAREST = np.uint32(1 << 31)
"""In place of random bits: round to the nearest, halves away from 0."""
_COMPILED = "this is compiled code only; its plain twin is in tests/kernels/reference/"


def read(table, r, d):
    """Return component `d` of row `r`: float64 for a table of float64, else float32."""
    raise NotImplementedError(_COMPILED)


def write(table, r, d, value, random):
    """Set component `d` of row `r`, rounded by 32 random bits (uint32) where the table has 16."""
    raise NotImplementedError(_COMPILED)


def subtract(table, r, scale, values_LD, line, row_bits):
    """Subtract ``scale * values_LD[line]`` from row `r`; `row_bits` (see `row_dice`) round rows of 16 bits."""
    raise NotImplementedError(_COMPILED)


def sum_listed(hot_HD, cold_RD, source_N, start, stop, out_LD, line):
    """Set ``out_LD[line]`` to the sum of listed rows of any type, see `row_vectors.sum_rows`."""
    raise NotImplementedError(_COMPILED)


def overflows(table, r):
    """Return whether row `r` of a half-precision table holds a number that is not finite; False for other tables."""
    raise NotImplementedError(_COMPILED)


@njit(inline="always", cache=True)  # a device's steps call it from the interpreter
def step_dice(seed, step):
    """Random bits (uint64) of one step; `row_dice` draws from them."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(step)
    return np.uint64((x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93))


@njit(inline="always")
def row_dice(step_bits, row):
    """Random bits (uint32) of the update of one row (of the joint row space) in one step; `dice` draws from them."""
    x = np.uint64(step_bits) + np.uint64(row)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.uint32(x >> np.uint64(32))


@njit(inline="always")
def dice(row_bits, d):
    """32 random bits (uint32) for component `d` of a row."""
    # 32-bit arithmetic, as vectors multiply that natively; the constants are the hash "lowbias32" of Chris Wellons.
    x = np.uint32(row_bits + np.uint32(d) * np.uint32(0x9E3779B9))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(inline="always")
def bf16_to_float(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(inline="always")
def float_to_bf16(value, random):
    bits = np.float32(value).view(np.uint32)
    rounded = np.uint32(bits + (random >> np.uint32(16)))
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16((np.uint32(0x7FC00000) if nan else rounded) >> np.uint32(16))


@njit(inline="always")
def half_to_float(bits):
    magnitude = np.uint32(np.uint32(bits) & np.uint32(0x7FFF))
    sign = np.uint32((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))
    exponent = np.uint32(224 << 23) if magnitude >= np.uint32(0x7C00) else np.uint32(112 << 23)  # 31 stands for 255
    normal = np.uint32(np.uint32(magnitude << np.uint32(13)) + exponent)
    small = np.float32(np.float32(np.int32(magnitude)) * np.float32(2.0**-24)).view(np.uint32)
    return np.uint32((small if magnitude < np.uint32(0x400) else normal) | sign).view(np.float32)


@njit(inline="always")
def float_to_half(value, random):
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    sign = np.uint32((bits & np.uint32(0x80000000)) >> np.uint32(16))
    rounded = np.uint32(np.uint32(magnitude + (random >> np.uint32(19))) >> np.uint32(13))
    normal = np.uint32(rounded - np.uint32(112 << 10)) if rounded < np.uint32(143 << 10) else np.uint32(0x7C00)
    # Below 2^-14 the steps no longer shrink: they are of 2^-24, and the number of steps is the bit pattern.
    tiny = magnitude < np.uint32(113 << 23)
    steps = np.int32((magnitude.view(np.float32) if tiny else np.float32(0)) * np.float32(2.0 ** (24 + 20)))
    small = np.uint32(np.int32(steps + np.int32(random >> np.uint32(12))) >> np.int32(20))
    nan = magnitude > np.uint32(0x7F800000)
    return np.int16((np.uint32(0x7E00) if nan else (small if tiny else normal)) | sign)


@overload(read)
def _read(table, r, d):
    if table.dtype == types.uint16:
        return lambda table, r, d: bf16_to_float(table[r, d])
    if table.dtype == types.int16:
        return lambda table, r, d: half_to_float(table[r, d])
    return lambda table, r, d: table[r, d]


@overload(write)
def _write(table, r, d, value, random):
    if table.dtype == types.uint16:

        def store(table, r, d, value, random):
            table[r, d] = float_to_bf16(value, random)

    elif table.dtype == types.int16:

        def store(table, r, d, value, random):
            table[r, d] = float_to_half(value, random)

    else:

        def store(table, r, d, value, random):
            table[r, d] = value

    return store


@overload(subtract, jit_options=_PART)
def _subtract(table, r, scale, values_LD, line, row_bits):
    if table.dtype == values_LD.dtype:

        def move(table, r, scale, values_LD, line, row_bits):
            subtract_scaled(table, r, scale, values_LD, line)

    else:

        def move(table, r, scale, values_LD, line, row_bits):
            for d in range(table.shape[1]):
                write(table, r, d, read(table, r, d) - scale * values_LD[line, d], dice(row_bits, d))

    return move


@overload(sum_listed, jit_options=_PART)
def _sum_listed(hot_HD, cold_RD, source_N, start, stop, out_LD, line):
    if cold_RD.dtype != types.int16 and not (cold_RD.dtype == types.uint16 and out_LD.dtype == types.float64):
        return lambda hot_HD, cold_RD, source_N, start, stop, out_LD, line: sum_rows(
            hot_HD, cold_RD, source_N, start, stop, out_LD, line
        )

    def add_up(hot_HD, cold_RD, source_N, start, stop, out_LD, line):
        for d in range(out_LD.shape[1]):
            out_LD[line, d] = 0
        for n in range(start, stop):
            source = source_N[n]
            if source >= 0:
                for d in range(out_LD.shape[1]):
                    out_LD[line, d] += read(hot_HD, source, d)
            else:
                for d in range(out_LD.shape[1]):
                    out_LD[line, d] += read(cold_RD, ~source, d)

    return add_up


@overload(overflows)
def _overflows(table, r):
    if table.dtype != types.int16:
        return lambda table, r: False

    def check(table, r):
        largest = np.int16(0)
        for d in range(table.shape[1]):
            largest = max(largest, np.int16(table[r, d] & np.int16(0x7FFF)))
        return largest >= np.int16(0x7C00)

    return check
