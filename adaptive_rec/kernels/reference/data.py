"""The plain twins of the data kernels: same names, same arguments, no Numba. Slow, and meant to be read."""

from __future__ import annotations

import math
import re

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.parse import (
    CATEGORY,
    CATEGORY_RANGE,
    COLUMNS,
    FINE,
    HEX_DIGITS,
    INT32_MAX,
    INTEGER,
    INTEGER_RANGE,
    LABEL,
)
from adaptive_rec.kernels.synthetic import TAIL_START

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


def parse_rows(
    data: NDArray[np.uint8],
    start: int,
    labels_B: NDArray[np.float32],
    ints_BX: NDArray[np.int32],
    values_BF: NDArray[np.uint32],
) -> tuple[int, int, int, int]:
    """Parse rows from byte `start` until the outputs are full, the data ends, or a row is malformed."""
    position, row = start, 0
    text = data.tobytes()
    while position < len(text) and row < len(labels_B):
        line = text[position : text.index(b"\n", position)]
        fields = line.removesuffix(b"\r").split(b"\t")
        fault, column = check_fields(fields, ints_BX.shape[1], values_BF.shape[1])
        if fault != FINE:
            return row, position, fault, column
        categories = fields[1 + ints_BX.shape[1] :]
        labels_B[row] = int(fields[0])
        ints_BX[row] = [int(field or b"0") for field in fields[1 : 1 + ints_BX.shape[1]]]
        values_BF[row] = [int(field or b"0", 16) for field in categories]
        position += len(line) + 1
        row += 1
    return row, position, FINE, 0


def check_fields(fields: list[bytes], dense_features: int, categories: int) -> tuple[int, int]:
    """(fault, column) of a row's fields: what is wrong first, read from the left; (FINE, 0) where nothing is."""
    if len(fields) != 1 + dense_features + categories:
        return COLUMNS, 0
    if fields[0] not in (b"0", b"1"):
        return LABEL, 0
    faults = [_integer_fault(field) for field in fields[1 : 1 + dense_features]]
    faults += [_category_fault(field) for field in fields[1 + dense_features :]]
    return next(((fault, column) for column, fault in enumerate(faults, 1) if fault != FINE), (FINE, 0))


def _integer_fault(field: bytes) -> int:
    if not re.fullmatch(rb"(-?[0-9]+)?", field):
        return INTEGER
    return INTEGER_RANGE if abs(int(field or b"0")) > INT32_MAX else FINE


def _category_fault(field: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]*", field):
        return CATEGORY
    return CATEGORY_RANGE if len(field) > HEX_DIGITS else FINE


def number_values(values_N: NDArray[np.uint32], slots: NDArray[np.int32], ids_N: NDArray[np.int32]) -> int:
    """Number the distinct values in order of first occurrence; returns how many there are."""
    numbers: dict[int, int] = {}
    for n, value in enumerate(values_N.tolist()):
        ids_N[n] = numbers.setdefault(value, len(numbers))
    return len(numbers)


def mix64(x: int) -> int:
    """A 64-bit hash of `x`."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def hash_at(key: int, index: int) -> int:
    """The hash that stands at `index` of the stream `key`."""
    return mix64((int(key) + (index + 1) * GOLDEN) & WORD)


def unit(x: int) -> float:
    """A hash as a number in [0, 1)."""
    return (x >> 11) / (1 << 53)


def bell(x: int) -> float:
    """A hash as a number of mean 0, variance 1 and nearly normal shape."""
    lanes = sum((x >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    return (lanes - 131070) / (65536.0 * math.sqrt(4.0 / 12.0))


def zipf_rank(mass: float, cdf_H: NDArray[np.float64], exponent: float, ranks: int) -> int:
    """The rank, from 0, at which the summed popularity of the ranks passes `mass`."""
    if mass < cdf_H[-1]:
        return min(int(np.searchsorted(cdf_H, mass, side="right")), ranks - 1)
    if exponent == 1.0:
        x = TAIL_START * math.exp(mass - cdf_H[-1])
    else:
        power = 1.0 - exponent
        x = max(TAIL_START**power + power * (mass - cdf_H[-1]), 1e-300) ** (1.0 / power)
    return int(min(x - 0.5, ranks - 1.0))


def draw_units(first: int, key: int, units_BK: NDArray[np.float64]) -> None:
    """Fill with uniform numbers of [0, 1) for the samples from `first` on."""
    for b, k in np.ndindex(units_BK.shape):
        units_BK[b, k] = unit(hash_at(hash_at(key, first + b), k))


def draw_counts(
    first: int, key: int, mean_X: NDArray[np.float64], spread_X: NDArray[np.float64], dense_BX: NDArray[np.float32]
) -> None:
    """Fill with log(1 + count) of log-normal counts."""
    for b, x in np.ndindex(dense_BX.shape):
        count = math.floor(math.exp(mean_X[x] + spread_X[x] * bell(hash_at(hash_at(key, first + b), x))))
        dense_BX[b, x] = math.log1p(count)


def draw_ids(
    first: int,
    key: int,
    offsets: NDArray[np.int64],
    popular_ratio: float,
    exponent: float,
    drift_per_sample: float,
    sudden_at: int,
    cdf_FH: NDArray[np.float64],
    mass_2F: NDArray[np.float64],
    ranks_2F: NDArray[np.int64],
    multiplier_2F: NDArray[np.int64],
    shift_2F: NDArray[np.int64],
    ids_N: NDArray[np.int64],
) -> None:
    """Fill the bags with ids."""
    features = len(cdf_FH)
    for bag in range(len(offsets) - 1):
        sample, f = first + bag // features, bag % features
        sample_key = hash_at(key, sample)
        head, phase = int(unit(mix64(sample_key)) < popular_ratio), int(sample >= sudden_at)
        rows = int(ranks_2F[0, f])
        for place, n in enumerate(range(offsets[bag], offsets[bag + 1])):
            mass = unit(hash_at(hash_at(sample_key, f), place)) * mass_2F[head, f]
            rank = zipf_rank(mass, cdf_FH[f], exponent, int(ranks_2F[head, f]))
            moved = (rank - int(sample * drift_per_sample)) % rows
            ids_N[n] = (int(multiplier_2F[phase, f]) * moved + int(shift_2F[phase, f])) % rows


def teacher_sums(
    first: int,
    jump_at: int,
    weights_2X: NDArray[np.float64],
    keys_2F: NDArray[np.uint64],
    dense_BX: NDArray[np.float32],
    ids_N: NDArray[np.int64],
    offsets: NDArray[np.int64],
    sums_B: NDArray[np.float64],
) -> None:
    """Fill with the planted teacher's weighted sums, unscaled."""
    features = keys_2F.shape[1]
    for b in range(len(sums_B)):
        phase = int(first + b >= jump_at)
        sums_B[b] = float(dense_BX[b].astype(np.float64) @ weights_2X[phase])
        for f in range(features):
            ids = ids_N[offsets[b * features + f] : offsets[b * features + f + 1]].tolist()
            sums_B[b] += sum(bell(hash_at(int(keys_2F[phase, f]), i)) for i in ids)
