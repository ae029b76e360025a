"""Checks that the gradients of every row sum to finite numbers, before a step updates anything."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels.finite_rows import find_infinite_row
from adaptive_rec.kernels.row_update import GradientPlaces, RowSegments
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.row_sums import surely_finite
from adaptive_rec.modules.loop.step_parts import StepUpdate
from adaptive_rec.placement import RowSpace


def check_sums(updates: Sequence[StepUpdate], space: RowSpace, step: int) -> None:
    """Raise TrainingError where the gradients of a row sum to a number that is not finite in one of a step's updates. Where no
    gradient is large this is one pass over them."""
    for update in updates:
        for pool, gradient in enumerate(update.gradients):
            if not surely_finite(gradient):
                _check_rows(update, pool, gradient, space, step)


def _check_rows(update: StepUpdate, pool: int, gradient: Tensor, space: RowSpace, step: int) -> None:
    work, own = update.work, update.work.space
    span, bags = work.pool_range(pool), work.batch.offsets
    places = GradientPlaces(len(own.features), bags, own.column_of_feature, own.mean_F, update.position_B, in_place=False)
    segments = RowSegments(span.start, work.segments_U1, work.segment_bag_N)
    place = find_infinite_row(segments, places, gradient.numpy(), span.stop - span.start)
    if place < 0:
        return
    row = int(work.distinct_U[span.start + place])
    table, first = max(enumerate(space.table_first_row.tolist()), key=lambda each: (each[1] <= row, each[1]))
    raise _refusal(row - first, space.tables[table].name, step)


def check_gradient(gradient: Tensor, table: str, step: int) -> None:
    """Raise TrainingError where the gradient (R, D) of a table's weight is not finite."""
    if not (gradient.is_finite() if isinstance(gradient, RowGradient) else bool(gradient.isfinite().all())):
        rows, values = gradient.sums() if isinstance(gradient, RowGradient) else (torch.arange(len(gradient)), gradient)
        raise _refusal(int(rows[~values.isfinite().all(1)][0]), table, step)


def _refusal(row: int, table: str, step: int) -> TrainingError:
    return TrainingError(
        f"the gradients of an embedding row must sum to finite numbers, those of row {row} of table {table} in step {step} do "
        "not; no row was updated"
    )


def mean_is_finite(sums_UD: Tensor, ranks: int) -> bool:
    """Return whether a rank's sums of gradients are finite, and small enough for the mean over several ranks to be, however it is
    rounded: each then stays below the type's largest number by a few of its last digits."""
    if not sums_UD.numel():
        return True
    kind = torch.finfo(sums_UD.dtype)
    low, high = sums_UD.aminmax()
    return max(-float(low), float(high)) <= kind.max * (1 - 4 * ranks * kind.eps)
