"""These kernels update rows on the CPU by every rule. They take arrays and change the caller's tiers.

Callers check shapes and bounds. Every kernel has a plain twin of the same name in `reference/step.py`. Shapes: see the legend in
`adaptive_rec.batch`; K is the width of a row's optimizer state. Threads and rows of 16 bits: as in `pooling.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_INLINE, JIT_PARALLEL, JIT_PART, PARTS_PER_THREAD, worth_waking
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.row_vectors import sum_of_squares, sum_rows
from adaptive_rec.kernels.rows16 import dice, overflows, read, row_dice, step_dice, subtract, write
from adaptive_rec.kernels.update_rules import ADAGRAD, LAZY_ADAM, LION, MOMENTUM, ROWWISE_ADAGRAD
from adaptive_rec.kernels.update_rules import SGD as SGD  # stores name it to sum up gradients

LR, EPS, BETA1, BETA2, REST1, REST2, DIM, DECAY, NESTEROV, CENTERED, FACTORS = range(11)
"""Places of a step's factors, in the gradients' precision, and their number."""

_ROWS_AHEAD = 12
"""How far ahead of their use rows are prefetched. Prefetching gradients too made an update of long segments slower."""


class RowSegments(NamedTuple):
    """The bags that touch each distinct row of a batch; the pool's rows begin at `first_u`."""

    first_u: int
    segments_U1: Any
    segment_bag_N: Any


class GradientPlaces(NamedTuple):
    """Where the gradient of each bag stands in `grad_STD`."""

    features: int
    offsets: Any
    column_F: Any
    """Column of each feature."""
    mean_F: Any
    """Whether a feature averages its rows."""
    position_B: Any
    """Line of each sample; -1 where it was skipped."""
    in_place: bool
    """Whether all samples and features stand in their own order and no feature averages: then bag ``i`` is line ``i``."""


class PoolRows(NamedTuple):
    """The distinct rows of one pool: whether each is frozen, its number, and its source; and the flags of all changed rows."""

    frozen_U: Any
    distinct_U: Any
    source_U: Any
    changed_R: Any


class TierArrays(NamedTuple):
    """Rows of one pool and their optimizer state, in both tiers."""

    hot_HD: Any
    hot_state_HK: Any
    cold_RD: Any
    cold_state_RK: Any


class Hyper(NamedTuple):
    """Constants of one step of an update rule."""

    lr: float
    eps: float
    beta1: float
    """Decay of the first moment, or of the momentum buffer."""
    beta2: float
    """Decay of the second moment."""
    step: float
    """Number of the step, a whole number from 1. It serves Adam's bias correction, as in torch.optim.SparseAdam."""
    seed: int = 0
    """Rows of 16 bits are rounded by random bits drawn from seed, step and the row's number."""
    decay: float = 0.0
    """Factor of the row itself in its gradient: the L2 term that torch calls weight_decay."""
    dampening: float = 0.0
    nesterov: bool = False
    centered: bool = False


def update_rows(rule, hyper, segments, places, grad_STD, rows, tiers, threads=1):
    """Update every distinct row of one pool once, where it lives, by the sum of its gradients over the bags that touch it.

    `hyper`, `segments`, `places`, `rows` and `tiers` are the named tuples above.
    Rows that no trained sample touches stay as they are, and so do frozen ones; all others are marked in `changed_R`.
    Columns of a row's state are the parts that `update_rules` lists, in this order.

    Returns the numbers of rows: (touched, updated, updated in the hot tier, too large now for half precision).
    """
    columns, dim = grad_STD.shape[1:]
    arrays = rule, hyper, segments, places, columns, grad_STD.reshape(-1, dim), rows, tiers
    if worth_waking(threads, len(segments.segment_bag_N)) == 1:
        counts_P4 = np.zeros((1, 4), dtype=np.int64)
        _update_range(0, len(rows.source_U), counts_P4[0], *arrays)
    else:
        counts_P4 = np.zeros((threads * PARTS_PER_THREAD, 4), dtype=np.int64)
        set_num_threads(threads)
        _update_parts(counts_P4, *arrays)
    touched, updated, hot_updated, overflowed = counts_P4.sum(axis=0).tolist()
    return touched, updated, hot_updated, overflowed


@njit(**JIT_PARALLEL)
def _update_parts(counts_P4, rule, hyper, segments, places, columns, grad_LD, rows, tiers):
    parts, count = len(counts_P4), len(rows.source_U)
    for p in prange(parts):
        first, end = count * p // parts, count * (p + 1) // parts
        _update_range(first, end, counts_P4[p], rule, hyper, segments, places, columns, grad_LD, rows, tiers)


@njit(**JIT)
def _update_range(first, end, counts_4, rule, hyper, segments, places, columns, grad_LD, rows, tiers):
    first_u, segments_U1, segment_bag_N = segments
    frozen_U, distinct_U, source_U, changed_R = rows
    hot_HD, hot_state_HK, cold_RD, cold_state_RK = tiers
    factors = _factors(rule, hyper, grad_LD)
    step_bits = step_dice(hyper.seed, hyper.step)
    grad_1D = np.empty((1, grad_LD.shape[1]), dtype=grad_LD.dtype)
    grad_D = grad_1D[0]
    touched, updated, hot_updated, overflowed = 0, 0, 0, 0
    for i in range(first, end):
        if i + _ROWS_AHEAD < end and not frozen_U[i + _ROWS_AHEAD]:
            prefetch_row(changed_R, distinct_U[i + _ROWS_AHEAD])
            source = source_U[i + _ROWS_AHEAD]
            if source >= 0:
                prefetch_row(hot_HD, source)
                prefetch_row(hot_state_HK, source)
            else:
                prefetch_row(cold_RD, ~source)
                prefetch_row(cold_state_RK, ~source)
        start, stop = segments_U1[first_u + i], segments_U1[first_u + i + 1]
        if frozen_U[i]:
            trained = _is_trained(start, stop, segment_bag_N, places.features, places.position_B)
        elif places.in_place:
            sum_rows(grad_LD, grad_LD, segment_bag_N, start, stop, grad_1D, 0)
            trained = True
        else:
            trained = sum_segment(start, stop, segment_bag_N, places, columns, grad_LD, grad_D)
        source = source_U[i]
        touched += trained
        if not trained or frozen_U[i]:
            continue
        updated += 1
        changed_R[distinct_U[i]] = True
        bits = row_dice(step_bits, distinct_U[i])
        if source >= 0:
            hot_updated += 1
            _apply_row(rule, factors, hot_HD, hot_state_HK, source, grad_1D, 0, bits)
            overflowed += overflows(hot_HD, source)
        else:
            _apply_row(rule, factors, cold_RD, cold_state_RK, ~source, grad_1D, 0, bits)
            overflowed += overflows(cold_RD, ~source)
    counts_4[0], counts_4[1], counts_4[2], counts_4[3] = touched, updated, hot_updated, overflowed


@njit(**JIT_INLINE)
def _is_trained(start, end, segment_bag_N, features, position_B):
    """Whether any of a row's bags belongs to a trained sample."""
    for k in range(start, end):
        if position_B[segment_bag_N[k] // features] >= 0:
            return True
    return False


@njit(**JIT_INLINE)
def sum_segment(start, end, segment_bag_N, places, columns, grad_LD, grad_D):
    """Add up a row's gradients over the bags of trained samples; return whether there is any."""
    features, offsets, column_F, mean_F, position_B, _ = places
    trained = False
    for d in range(len(grad_D)):
        grad_D[d] = 0
    for k in range(start, end):
        bag = np.uint32(segment_bag_N[k])  # 32 bits: a division is the slowest thing here
        sample = bag // np.uint32(features)
        if position_B[sample] < 0:
            continue
        trained = True
        f = bag - sample * np.uint32(features)
        line = position_B[sample] * columns + column_F[f]
        if mean_F[f]:
            length = offsets[bag + 1] - offsets[bag]
            for d in range(len(grad_D)):
                grad_D[d] += grad_LD[line, d] / length
        else:
            for d in range(len(grad_D)):
                grad_D[d] += grad_LD[line, d]
    return trained


@njit(**JIT)
def _factors(rule, hyper, like):
    """Return the factors of a step, in the precision of `like`."""
    factors = np.empty(FACTORS, dtype=like.dtype)
    set_factors(rule, hyper, like.shape[-1], factors)
    return factors


@njit(**JIT)
def set_factors(rule, hyper, dim, factors):
    """Set the factors of a step: constants of the rule, Adam's learning rate with its bias correction."""
    lr, fresh = hyper.lr, 1 - hyper.beta1
    if rule == LAZY_ADAM:
        lr *= np.sqrt(1 - hyper.beta2**hyper.step) / (1 - hyper.beta1**hyper.step)
    elif rule == MOMENTUM:
        fresh = 1.0 if hyper.step == 1 else 1 - hyper.dampening
    factors[LR], factors[EPS], factors[BETA1], factors[BETA2] = lr, hyper.eps, hyper.beta1, hyper.beta2
    factors[REST1], factors[REST2], factors[DIM] = fresh, 1 - hyper.beta2, dim
    factors[DECAY], factors[NESTEROV], factors[CENTERED] = hyper.decay, hyper.nesterov, hyper.centered


@njit(**JIT_INLINE)
def _apply_row(rule, factors, weights, state, r, grad_LD, line, bits):
    """Update row `r` of a tier by ``grad_LD[line]``, to which an L2 term is added; `bits` are its random bits for rounding."""
    dim = grad_LD.shape[1]
    lr, eps = factors[LR], factors[EPS]
    if factors[DECAY] != 0:
        for d in range(dim):
            grad_LD[line, d] += factors[DECAY] * read(weights, r, d)
    if rule == SGD:
        subtract(weights, r, lr, grad_LD, line, bits)
    elif rule == ROWWISE_ADAGRAD:
        state[r, 0] += sum_of_squares(grad_LD, line) / factors[DIM]
        subtract(weights, r, lr / (np.sqrt(state[r, 0]) + eps), grad_LD, line, bits)
    elif rule == ADAGRAD:
        for d in range(dim):
            state[r, d] += grad_LD[line, d] * grad_LD[line, d]
            change = lr * grad_LD[line, d] / (np.sqrt(state[r, d]) + eps)
            write(weights, r, d, read(weights, r, d) - change, dice(bits, d))
    elif rule == LAZY_ADAM:
        beta1, beta2, rest1, rest2 = factors[BETA1], factors[BETA2], factors[REST1], factors[REST2]
        for d in range(dim):
            state[r, d] = beta1 * state[r, d] + rest1 * grad_LD[line, d]
            state[r, dim + d] = beta2 * state[r, dim + d] + rest2 * grad_LD[line, d] * grad_LD[line, d]
            change = lr * state[r, d] / (np.sqrt(state[r, dim + d]) + eps)
            write(weights, r, d, read(weights, r, d) - change, dice(bits, d))
    elif rule == LION:
        beta1, beta2, rest1, rest2 = factors[BETA1], factors[BETA2], factors[REST1], factors[REST2]
        for d in range(dim):
            towards = beta1 * state[r, d] + rest1 * grad_LD[line, d]
            state[r, d] = beta2 * state[r, d] + rest2 * grad_LD[line, d]
            change = lr if towards > 0 else -lr if towards < 0 else towards  # 0, or NaN
            write(weights, r, d, read(weights, r, d) - change, dice(bits, d))
    elif rule == MOMENTUM:
        beta1, rest1, nesterov = factors[BETA1], factors[REST1], factors[NESTEROV] != 0
        for d in range(dim):
            state[r, d] = beta1 * state[r, d] + rest1 * grad_LD[line, d]
            change = grad_LD[line, d] + beta1 * state[r, d] if nesterov else state[r, d]
            write(weights, r, d, read(weights, r, d) - lr * change, dice(bits, d))
    else:
        _apply_rmsprop(factors, weights, state, r, grad_LD, line, bits)


@njit(**JIT_INLINE)
def _apply_rmsprop(factors, weights, state, r, grad_LD, line, bits):
    dim, beta1, centered = grad_LD.shape[1], factors[BETA1], factors[CENTERED] != 0
    buffer = 2 * dim if centered else dim
    for d in range(dim):
        state[r, d] = factors[BETA2] * state[r, d] + factors[REST2] * grad_LD[line, d] * grad_LD[line, d]
        square = state[r, d]
        if centered:
            state[r, dim + d] = factors[BETA2] * state[r, dim + d] + factors[REST2] * grad_LD[line, d]
            square -= state[r, dim + d] * state[r, dim + d]
        change = grad_LD[line, d] / (np.sqrt(square) + factors[EPS])
        if beta1 != 0:
            state[r, buffer + d] = beta1 * state[r, buffer + d] + change
            change = state[r, buffer + d]
        write(weights, r, d, read(weights, r, d) - factors[LR] * change, dice(bits, d))


@njit(**JIT_PART)
def apply_row(rule, factors, weights, state, r, grad_1D):
    """Update one row of a tier, of 32 or 64 bits, by a step's factors."""
    _apply_row(rule, factors, weights, state, r, grad_1D, 0, np.uint32(0))


@njit(**JIT)
def apply_rows(rule, hyper, source_U, grad_UD, active_U, tiers, bits_U=None):
    """Update every active distinct row once by a gradient that is summed already.

    `hyper` and `tiers` are as in `update_rows`; an L2 term is added to `grad_UD`. `bits_U` (see `rows16.row_dice`) are needed
    where rows are of 16 bits.
    """
    hot_HD, hot_state_HK, cold_RD, cold_state_RK = tiers
    factors = _factors(rule, hyper, grad_UD)
    for u in range(len(source_U)):
        if not active_U[u]:
            continue
        bits = np.uint32(0) if bits_U is None else bits_U[u]
        if source_U[u] >= 0:
            _apply_row(rule, factors, hot_HD, hot_state_HK, source_U[u], grad_UD, u, bits)
        else:
            _apply_row(rule, factors, cold_RD, cold_state_RK, ~source_U[u], grad_UD, u, bits)
