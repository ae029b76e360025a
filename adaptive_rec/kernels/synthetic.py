"""These kernels draw synthetic samples. Every number is a hash of (key, sample, slot), so any sample can be drawn alone.

The hash is the output function of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from adaptive_rec.kernels.jit import JIT, JIT_PART

HEAD_RANKS = 256
"""Ranks whose popularity is summed exactly; beyond them an integral replaces the sum (relative error under 2e-5)."""
TAIL_START = HEAD_RANKS + 0.5
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
LANE = np.uint64(0xFFFF)
BELL_SCALE = 1.0 / (65536.0 * math.sqrt(4.0 / 12.0))
UNIT_SCALE = 1.0 / (1 << 53)


@njit(**JIT_PART)
def mix64(x: np.uint64) -> np.uint64:
    """A 64-bit hash of `x`."""
    x = (x ^ (x >> np.uint64(30))) * MIX_1
    x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))


@njit(**JIT_PART)
def hash_at(key: np.uint64, index: int) -> np.uint64:
    """The hash that stands at `index` of the stream `key`."""
    return mix64(key + (np.uint64(index) + np.uint64(1)) * GOLDEN)


@njit(**JIT_PART)
def unit(x: np.uint64) -> float:
    """A hash as a number in [0, 1)."""
    return np.int64(x >> np.uint64(11)) * UNIT_SCALE


@njit(**JIT_PART)
def bell(x: np.uint64) -> float:
    """A hash as a number of mean 0, variance 1 and nearly normal shape: the sum of its four 16-bit lanes."""
    lanes = (x & LANE) + ((x >> np.uint64(16)) & LANE) + ((x >> np.uint64(32)) & LANE) + (x >> np.uint64(48))
    return (np.int64(lanes) - 131070) * BELL_SCALE


@njit(**JIT_PART)
def zipf_rank(mass: float, cdf_H: NDArray[np.float64], exponent: float, ranks: int) -> int:
    """The rank, from 0, at which the summed popularity of the ranks passes `mass`; below `ranks`."""
    if mass >= cdf_H[-1]:
        if exponent == 1.0:
            log_x = math.log(TAIL_START) + (mass - cdf_H[-1])
        else:
            power = 1.0 - exponent
            log_x = math.log(max(TAIL_START**power + power * (mass - cdf_H[-1]), 1e-300)) / power
        return int(min(math.exp(min(log_x, 40.0)) - 0.5, ranks - 1.0))
    rank = 0
    step = HEAD_RANKS // 2
    while step > 0:
        if cdf_H[rank + step - 1] <= mass:
            rank += step
        step //= 2
    return min(rank, ranks - 1)


@njit(**JIT)
def draw_units(first: int, key: np.uint64, units_BK: NDArray[np.float64]) -> None:
    """Fill with uniform numbers of [0, 1) for the samples from `first` on."""
    for b in range(units_BK.shape[0]):
        sample_key = hash_at(key, first + b)
        for k in range(units_BK.shape[1]):
            units_BK[b, k] = unit(hash_at(sample_key, k))


@njit(**JIT)
def draw_counts(
    first: int,
    key: np.uint64,
    mean_X: NDArray[np.float64],
    spread_X: NDArray[np.float64],
    dense_BX: NDArray[np.float32],
) -> None:
    """Fill with log(1 + count) of log-normal counts."""
    for b in range(dense_BX.shape[0]):
        sample_key = hash_at(key, first + b)
        for x in range(dense_BX.shape[1]):
            count = math.floor(math.exp(mean_X[x] + spread_X[x] * bell(hash_at(sample_key, x))))
            dense_BX[b, x] = math.log(1.0 + count)


@njit(**JIT)
def draw_ids(
    first: int,
    key: np.uint64,
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
    """Fill the bags with ids: a rank by bounded Zipf, moved by drift, sent through the bijection a * rank + c mod rows.

    Row 0 of mass_2F and ranks_2F is the whole table, row 1 its head. Row 0 of multiplier_2F and shift_2F
    holds before the sudden drift, row 1 from it on.
    """
    features = cdf_FH.shape[0]
    for b in range((len(offsets) - 1) // features):
        sample_key = hash_at(key, first + b)
        head = 1 if unit(mix64(sample_key)) < popular_ratio else 0
        phase = 1 if first + b >= sudden_at else 0
        moved = np.int64((first + b) * drift_per_sample)
        for f in range(features):
            rows = ranks_2F[0, f]
            feature_key = hash_at(sample_key, f)
            behind = moved % rows if moved > 0 else 0
            for n in range(offsets[b * features + f], offsets[b * features + f + 1]):
                mass = unit(hash_at(feature_key, n - offsets[b * features + f])) * mass_2F[head, f]
                rank = zipf_rank(mass, cdf_FH[f], exponent, ranks_2F[head, f]) - behind
                rank += rows if rank < 0 else 0
                ids_N[n] = (multiplier_2F[phase, f] * rank + shift_2F[phase, f]) % rows


@njit(**JIT)
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
    """Fill with the planted teacher's weighted sums, unscaled; row 1 of the weights holds from sample `jump_at` on."""
    features = keys_2F.shape[1]
    for b in range(len(sums_B)):
        phase = 1 if first + b >= jump_at else 0
        total = 0.0
        for x in range(dense_BX.shape[1]):
            total += weights_2X[phase, x] * dense_BX[b, x]
        for f in range(features):
            for n in range(offsets[b * features + f], offsets[b * features + f + 1]):
                total += bell(hash_at(keys_2F[phase, f], ids_N[n]))
        sums_B[b] = total
