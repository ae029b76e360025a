"""Plain twins of the kernels in `synthetic.py`: same names, same arguments, no Numba."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.synthetic import TAIL_START

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


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
