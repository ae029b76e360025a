"""Missed steps of optimizers that move every row at every step, other than Adam's (`catch_up.py`).

The last column of a row's state is the number of its last step. A missed step is a step whose gradient is 0, but for an L2 term.
Where it is linear, as in SGD with momentum and weight decay, it is a matrix of 2 x 2 that all components of all rows share: a
row's weights and momentum buffer are multiplied by the product of the steps that it missed, which a binary tree of products gives
in as many factors as their number has bits. Other missed steps are made one by one. The plain twin of both is the update itself,
`reference/step.py`, with gradients of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE, JIT_PART
from adaptive_rec.kernels.row_update import apply_row


class LinearHistory(NamedTuple):
    """The steps of a table from number `first` + 1 to `last`, each a matrix that takes (weight, buffer) to its next values."""

    first: int
    last: int
    tree_N4: Any
    """Matrices (row by row) of the steps, from place N / 2 on; before them node n is the product of nodes 2n and 2n + 1."""
    buffer: int
    """First column of the momentum buffers; -1: there are none."""
    fade: float
    """Factor of a step on the columns before the buffers."""
    faded: int
    """Number of these columns."""


@njit(**JIT)
def set_step(tree_N4, place, step_4):
    """Put the matrix of a step into the tree of products."""
    node = len(tree_N4) // 2 + place
    for i in range(4):
        tree_N4[node, i] = step_4[i]
    while node > 1:
        node //= 2
        _multiply(tree_N4[2 * node + 1], tree_N4[2 * node], tree_N4[node])


@njit(**JIT_INLINE)
def _multiply(later_4, earlier_4, out_4):
    a = later_4[0] * earlier_4[0] + later_4[1] * earlier_4[2]
    b = later_4[0] * earlier_4[1] + later_4[1] * earlier_4[3]
    c = later_4[2] * earlier_4[0] + later_4[3] * earlier_4[2]
    e = later_4[2] * earlier_4[1] + later_4[3] * earlier_4[3]
    out_4[0], out_4[1], out_4[2], out_4[3] = a, b, c, e


@njit(**JIT_PART)
def product_of_steps(tree_N4, low, high, early_4, late_4):
    """Set `early_4` to the product of the steps at places low to high - 1; `late_4` is room for a part of it."""
    for i in range(4):
        early_4[i] = late_4[i] = i == 0 or i == 3
    low, high = low + len(tree_N4) // 2, high + len(tree_N4) // 2
    while low < high:
        if low & 1:
            _multiply(tree_N4[low], early_4, early_4)
            low += 1
        if high & 1:
            high -= 1
            _multiply(late_4, tree_N4[high], late_4)
        low, high = low // 2, high // 2
    _multiply(late_4, early_4, early_4)


@njit(**JIT)
def catch_up_linear(row_N, slot_R, history, next_step, tiers):
    """Bring rows of a pool to the last step of a history; arguments and result are those of `catch_up.catch_up_rows`."""
    hot_HD, hot_state_HK, cold_RD, cold_state_RK = tiers
    product_4, part_4, known, changed = np.empty(4), np.empty(4), np.int64(-1), 0
    for n in range(len(row_N)):
        slot = slot_R[row_N[n]]
        if slot >= 0:
            weights_D, state_K = hot_HD[slot], hot_state_HK[slot]
        else:
            weights_D, state_K = cold_RD[row_N[n]], cold_state_RK[row_N[n]]
        done = np.int64(state_K[-1])
        if done >= max(history.last, next_step):
            continue
        if done < history.last:
            if done != known:
                product_of_steps(history.tree_N4, done - history.first, history.last - history.first, product_4, part_4)
                known = done
            _make(weights_D, state_K, history, product_4, history.fade ** (history.last - done))
        state_K[-1] = max(history.last, next_step)
        changed += 1
    return changed


@njit(**JIT_INLINE)
def _make(weights_D, state_K, history, product_4, fade):
    for d in range(history.faded):
        state_K[d] *= fade
    for d in range(len(weights_D)):
        weight = np.float64(weights_D[d])
        if history.buffer < 0:
            weights_D[d] = product_4[0] * weight
        else:
            buffer = np.float64(state_K[history.buffer + d])
            weights_D[d] = product_4[0] * weight + product_4[1] * buffer
            state_K[history.buffer + d] = product_4[2] * weight + product_4[3] * buffer


class StepwiseHistory(NamedTuple):
    """The steps of a table from number `first` + 1 to `last`, to be made one by one."""

    first: int
    last: int
    rule: int
    factor_SF: Any
    """Factors of each step (`row_update.set_factors`)."""


@njit(**JIT)
def catch_up_stepwise(row_N, slot_R, history, next_step, tiers):
    """Bring rows of a pool to the last step of a history; arguments and result are those of `catch_up.catch_up_rows`."""
    hot_HD, hot_state_HK, cold_RD, cold_state_RK = tiers
    grad_1D, changed = np.empty((1, hot_HD.shape[1]), dtype=history.factor_SF.dtype), 0
    for n in range(len(row_N)):
        slot = np.int64(slot_R[row_N[n]])
        if slot >= 0:
            changed += _step_by_step(hot_HD, hot_state_HK, slot, history, next_step, grad_1D)
        else:
            changed += _step_by_step(cold_RD, cold_state_RK, np.int64(row_N[n]), history, next_step, grad_1D)
    return changed


@njit(**JIT_INLINE)
def _step_by_step(weights, state, r, history, next_step, grad_1D):
    done = np.int64(state[r, -1])
    if done >= max(history.last, next_step):
        return 0
    for place in range(done - history.first, history.last - history.first):
        grad_1D[:] = 0
        apply_row(history.rule, history.factor_SF[place], weights, state, r, grad_1D)
    state[r, -1] = max(history.last, next_step)
    return 1
