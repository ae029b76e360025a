"""Missed steps of dense Adam: a row that was not touched for a while is brought to the present step when it is needed.

Torch's Adam and AdamW move every row at every step, by its momentum and its decay. Here a row keeps the number of its last
step, in the last column of its state (first D moments, D second moments), and this kernel makes the steps that it missed. A few
are made one by one. Many are made at once: the moves of a component with moments m and v after the row's last step s sum to

    m * sum over t of c_t / (x * q_t + eps),   where x = sqrt(v),
    c_t = lr_t / (1 - beta1^t) * beta1^(t-s),  q_t = beta2^((t-s)/2) / sqrt(1 - beta2^t).

While c_t vanishes, q_t hardly changes. So the sum is a power series in q_t - q_(s+1), and its coefficients are the same for all
rows with that last step (`embedding/missed_steps.py`). The plain twin, in `reference/catch_up.py`, makes every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT, JIT_INLINE

TERMS = 10
"""Terms of the power series."""
FEW_STEPS = 8
"""So many missed steps are made one by one."""


class History(NamedTuple):
    """The steps of a table's optimizer, from number `first` + 1 to `last`; S of them."""

    first: int
    last: int
    rate_S: Any
    """Learning rate over its bias correction."""
    root_S: Any
    """Square root of the second moments' bias correction."""
    decay_S1: Any
    """Sum of the logarithms of 1 - lr * weight_decay, before each step and at the end."""
    series_ST: Any
    """Coefficients of the power series of rows whose last step came before each step; up to `series_to_S`."""
    centre_S: Any
    """Value of q at each step for these rows: where the series is centred."""
    series_to_S: Any
    """Number of the last step in `series_ST`."""
    is_series_S: Any
    """Whether the series is exact to rounding."""
    horizon: int
    """Missed steps after which a row's momentum is below rounding."""
    beta1: float
    beta2: float
    eps: float


@njit(**JIT)
def catch_up_rows(row_N, slot_R, history, next_step, tiers):
    """Bring rows of a pool to the last step of a history, each where it lives. Rows may be given twice.

    `row_N` are numbers within the pool, `slot_R` the slots of its rows. With `next_step` (0: none) rows also get the weight decay
    of the step of that number, and are marked as touched by it: the update follows.
    Returns the number of rows that changed.
    """
    hot_HD, hot_state_HK, cold_RD, cold_state_RK = tiers
    changed = 0
    for n in range(len(row_N)):
        slot = slot_R[row_N[n]]
        if slot >= 0:
            changed += _catch_up(hot_HD[slot], hot_state_HK[slot], history, next_step)
        else:
            changed += _catch_up(cold_RD[row_N[n]], cold_state_RK[row_N[n]], history, next_step)
    return changed


@njit(**JIT_INLINE)
def _catch_up(weights_D, state_K, history, next_step):
    """Make the steps that one row missed; return whether there were any."""
    dim = len(weights_D)
    done = np.int64(state_K[2 * dim])
    if done >= max(history.last, next_step):
        return 0
    missed = history.last - done
    if missed > 0:
        place = done - history.first
        touched = False
        for d in range(dim):
            touched |= state_K[d] != 0
        if not touched:
            _decay(weights_D, history.decay_S1[history.last - history.first] - history.decay_S1[place])
        elif missed <= FEW_STEPS or not history.is_series_S[place]:
            _one_by_one(weights_D, state_K, history, place, missed)
        else:
            _at_once(weights_D, state_K, history, place, missed)
        fade1, fade2 = history.beta1**missed, history.beta2**missed
        for d in range(dim):
            state_K[d] *= fade1
            state_K[dim + d] *= fade2
    if next_step > 0:
        steps = history.last - history.first
        _decay(weights_D, history.decay_S1[steps + 1] - history.decay_S1[steps])
    state_K[2 * dim] = max(history.last, next_step)
    return 1


@njit(**JIT_INLINE)
def _decay(weights_D, logarithm):
    if logarithm != 0:
        factor = np.exp(logarithm)
        for d in range(len(weights_D)):
            weights_D[d] *= factor


@njit(**JIT_INLINE)
def _one_by_one(weights_D, state_K, history, place, missed):
    dim, made = len(weights_D), min(missed, history.horizon)
    for i in range(made):
        k = place + i
        fade1, root2 = history.beta1 ** (i + 1), np.sqrt(history.beta2 ** (i + 1))
        keep = np.exp(history.decay_S1[k + 1] - history.decay_S1[k])
        for d in range(dim):
            x = np.sqrt(np.float64(state_K[dim + d])) * root2
            move = history.rate_S[k] * fade1 * state_K[d] / (x / history.root_S[k] + history.eps)
            weights_D[d] = weights_D[d] * keep - move
    _decay(weights_D, history.decay_S1[place + missed] - history.decay_S1[place + made])


@njit(**JIT_INLINE)
def _at_once(weights_D, state_K, history, place, missed):
    dim, centre = len(weights_D), history.centre_S[place]
    end = history.series_to_S[place] - history.first
    keep = np.exp(history.decay_S1[place + missed] - history.decay_S1[place])
    after = np.exp(history.decay_S1[place + missed] - history.decay_S1[end])
    for d in range(dim):
        x = np.sqrt(np.float64(state_K[dim + d]))
        base = x * centre + history.eps
        y, total = -x / base, 0.0
        for n in range(TERMS - 1, -1, -1):
            total = total * y + history.series_ST[place, n]
        weights_D[d] = weights_D[d] * keep - after * state_K[d] * total / base
