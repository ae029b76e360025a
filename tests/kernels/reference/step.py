"""Plain NumPy twins of `classify.py`, `pooling.py` and `row_update.py`: the readable specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.row_update import Hyper
from adaptive_rec.kernels.update_rules import ADAGRAD, LAZY_ADAM, LION, MOMENTUM, ROWWISE_ADAGRAD, SGD

Array = NDArray[Any]


def find_distinct(
    ids_N: Array, offsets: Array, feature_order: Array, pool_of_feature: Array, first_row_F: Array
) -> tuple[Array, Array, list[list[int]], Array]:
    """Return (distinct rows, inverse, bags of each distinct row, end of each pool's distinct rows)."""
    features = len(feature_order)
    samples = (len(offsets) - 1) // features
    number: dict[int, int] = {}
    bags: list[list[int]] = []
    inverse_N = np.zeros(len(ids_N), dtype=np.int32)
    pool_ends = np.zeros(pool_of_feature.max() + 1, dtype=np.int64)
    for f in feature_order:
        for b in range(samples):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                u = number.setdefault(int(first_row_F[f] + ids_N[n]), len(number))
                if u == len(bags):
                    bags.append([])
                bags[u].append(bag)
                inverse_N[n] = u
        pool_ends[pool_of_feature[f]] = len(number)
    return np.array(list(number), dtype=np.int64), inverse_N, bags, pool_ends


def find_sources(distinct_U: Array, pool_ends: Array, pool_first_row: Array, slot_of_row: Array) -> Array:
    pool_U = np.searchsorted(pool_ends, np.arange(len(distinct_U)), side="right")
    slot_U = slot_of_row[distinct_U]
    return np.where(slot_U >= 0, slot_U, ~(distinct_U - pool_first_row[pool_U]))


def spread_sources(source_U: Array, inverse_N: Array, offsets: Array, features: int) -> tuple[Array, ...]:
    """Return (each lookup's source, whether each sample is popular, lookups of each feature, those of hot rows among them)."""
    source_N = source_U[inverse_N]
    bounds = offsets[::features]
    popular_B = [bool(np.all(source_N[low:high] >= 0)) for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
    feature_N = np.repeat(np.arange(len(offsets) - 1) % features, np.diff(offsets))
    lookups_F, hot_F = (np.bincount(each, minlength=features) for each in (feature_N, feature_N[source_N >= 0]))
    return source_N, np.array(popular_B, dtype=bool), lookups_F, hot_F


def count_flagged(flag_U: Array, inverse_N: Array, offsets: Array, features: int) -> Array:
    bounds = offsets[::features]
    return np.array([int(flag_U[inverse_N[low:high]].sum()) for low, high in zip(bounds[:-1], bounds[1:], strict=True)])


def gather_pooled(
    samples_S: Array, pool_features: Array, features: int, offsets: Array, source_N: Array, mean_F: Array,
    hot_HD: Array, cold_RD: Array,
) -> Array:  # fmt: skip
    out_STD = np.zeros((len(samples_S), len(pool_features), cold_RD.shape[1]), dtype=cold_RD.dtype)
    for i, b in enumerate(samples_S):
        if b < 0:
            continue
        for t, f in enumerate(pool_features):
            bag = b * features + f
            sources = source_N[offsets[bag] : offsets[bag + 1]]
            for source in sources:
                out_STD[i, t] += hot_HD[source] if source >= 0 else cold_RD[~source]
            if mean_F[f] and len(sources):
                out_STD[i, t] /= len(sources)
    return out_STD


def sum_segments(
    bags_U: list[list[int]],
    features: int,
    offsets: Array,
    column_F: Array,
    mean_F: Array,
    position_B: Array,
    grad_STD: Array,
) -> tuple[Array, Array]:
    """Return (gradient of each distinct row, whether any trained sample touches it)."""
    grad_UD = np.zeros((len(bags_U), grad_STD.shape[2]), dtype=grad_STD.dtype)
    touched_U = np.zeros(len(bags_U), dtype=bool)
    for u, bags in enumerate(bags_U):
        for bag in bags:
            b, f = divmod(bag, features)
            if position_B[b] < 0:
                continue
            length = offsets[bag + 1] - offsets[bag] if mean_F[f] else 1
            grad_UD[u] += grad_STD[position_B[b], column_F[f]] / length
            touched_U[u] = True
    return grad_UD, touched_U


def find_infinite_row(
    bags_U: list[list[int]], features: int, offsets: Array, column_F: Array, mean_F: Array, position_B: Array, grad_STD: Array
) -> int:
    """Return the first distinct row whose sum of gradients is not finite; -1: there is none."""
    with np.errstate(over="ignore", invalid="ignore"):
        grad_UD, _ = sum_segments(bags_U, features, offsets, column_F, mean_F, position_B, grad_STD)
    return next((u for u, grad_D in enumerate(grad_UD) if not np.isfinite(grad_D).all()), -1)


def update_rows(
    rule: int, hyper: Hyper, bags_U: list[list[int]], features: int, offsets: Array, column_F: Array,
    mean_F: Array, position_B: Array, grad_STD: Array, frozen_U: Array, distinct_U: Array, source_U: Array, changed_R: Array,
    *tiers: Array,
) -> tuple[int, int, int, int]:  # fmt: skip
    """`bags_U` are the bags of each of the pool's distinct rows, which are of 32 or 64 bits."""
    grad_UD, touched_U = sum_segments(bags_U, features, offsets, column_F, mean_F, position_B, grad_STD)
    active_U = touched_U & ~frozen_U
    apply_rows(rule, hyper, source_U, grad_UD, active_U, *tiers)
    changed_R[distinct_U[active_U]] = True
    return int(touched_U.sum()), int(active_U.sum()), int((active_U & (source_U >= 0)).sum()), 0


def apply_row(
    rule: int,
    hyper: Hyper,
    weights_D: Array,
    state_K: Array,
    grad_D: Array,
) -> None:
    """Update one row in place by the textbook formula of its rule."""
    lr, eps, beta1, beta2, step = hyper[:5]
    dim = len(grad_D)
    if hyper.decay:
        grad_D = grad_D + hyper.decay * weights_D
    if rule == SGD:
        weights_D -= lr * grad_D
    elif rule == ROWWISE_ADAGRAD:
        state_K[0] += np.mean(grad_D**2)
        weights_D -= lr * grad_D / (np.sqrt(state_K[0]) + eps)
    elif rule == ADAGRAD:
        state_K += grad_D**2
        weights_D -= lr * grad_D / (np.sqrt(state_K) + eps)
    elif rule == MOMENTUM:
        state_K[:dim] = beta1 * state_K[:dim] + (1 if step == 1 else 1 - hyper.dampening) * grad_D
        weights_D -= lr * (grad_D + beta1 * state_K[:dim] if hyper.nesterov else state_K[:dim])
    elif rule == LION:
        weights_D -= lr * np.sign(beta1 * state_K[:dim] + (1 - beta1) * grad_D)
        state_K[:dim] = beta2 * state_K[:dim] + (1 - beta2) * grad_D
    elif rule == LAZY_ADAM:
        first_D, second_D = state_K[:dim], state_K[dim : 2 * dim]
        first_D[:] = beta1 * first_D + (1 - beta1) * grad_D
        second_D[:] = beta2 * second_D + (1 - beta2) * grad_D**2
        correction = np.sqrt(1 - beta2**step) / (1 - beta1**step)
        weights_D -= lr * correction * first_D / (np.sqrt(second_D) + eps)
    else:  # RMSprop
        state_K[:dim] = beta2 * state_K[:dim] + (1 - beta2) * grad_D**2
        square_D, buffer = state_K[:dim].copy(), 2 * dim if hyper.centered else dim
        if hyper.centered:
            state_K[dim : 2 * dim] = beta2 * state_K[dim : 2 * dim] + (1 - beta2) * grad_D
            square_D -= state_K[dim : 2 * dim] ** 2
        change_D = grad_D / (np.sqrt(square_D) + eps)
        if beta1:
            state_K[buffer : buffer + dim] = beta1 * state_K[buffer : buffer + dim] + change_D
            change_D = state_K[buffer : buffer + dim]
        weights_D -= lr * change_D


def apply_rows(
    rule: int, hyper: Hyper, source_U: Array, grad_UD: Array, active_U: Array, hot_HD: Array,
    hot_state_HK: Array, cold_RD: Array, cold_state_RK: Array,
) -> None:  # fmt: skip
    for source, grad_D, active in zip(source_U, grad_UD, active_U, strict=True):
        if active and source >= 0:
            apply_row(rule, hyper, hot_HD[source], hot_state_HK[source], grad_D)
        elif active:
            apply_row(rule, hyper, cold_RD[~source], cold_state_RK[~source], grad_D)
