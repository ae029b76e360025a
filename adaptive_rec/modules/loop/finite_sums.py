"""The checks of each step that the gradients of rows sum to finite numbers, before it updates anything; on a device no step waits
for its check."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels.finite_rows import find_infinite_row
from adaptive_rec.kernels.row_update import GradientPlaces, RowSegments
from adaptive_rec.modules.loop.own_rows import OwnRows
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.row_sums import surely_finite
from adaptive_rec.modules.loop.step_parts import StepUpdate
from adaptive_rec.placement import RowSpace

LATE_STEPS = 8
"""Steps between two looks at what the device has found."""


class SumCheck:
    """Checks a step's gradients before any update; several ranks check what they send."""

    def __init__(self, rows: OwnRows) -> None:
        self._rows = rows

    def sound(self, updates: Sequence[StepUpdate], step: int) -> Tensor | None:
        """Return whether a step may update rows, where only the device knows. Raises TrainingError where it may not."""
        if self._rows.group.is_alone:
            check_sums(updates, self._rows.space, step)
        return None

    def look(self) -> None:
        """Look at what has arrived from the device. Raises TrainingError where a step was faulty."""

    def settle(self) -> None:
        """Wait until all steps are checked. Raises TrainingError where one was faulty."""


class LateSums(SumCheck):
    """Finds steps whose gradients are too large: the sum of their squares is not finite, as it must be for sums of rows that
    surely are. Such a step leaves all rows as they are; the error comes some steps later."""

    def __init__(self, rows: OwnRows, store: EmbeddingStore) -> None:
        super().__init__(rows)
        self._store = store
        self._first = torch.zeros((), dtype=torch.int64, device=store.torch_device)
        """Number of the first such step; 0: there was none."""
        self._coming: Fetched | None = None
        self._steps = 0
        """Steps since the last look."""

    def sound(self, updates: Sequence[StepUpdate], step: int) -> Tensor | None:
        flat = [gradient.reshape(-1) for update in updates for gradient in update.gradients if gradient.numel()]
        if not flat:
            return torch.ones((), dtype=torch.bool, device=self._first.device)
        sound = torch.stack([torch.dot(part, part) for part in flat]).isfinite().all()
        self._first.copy_(torch.where(sound | (self._first > 0), self._first, step))
        self._steps += 1
        return sound

    def look(self) -> None:
        if self._coming is not None and self._store.peers.has_arrived(self._coming):
            self._judge(self._coming)
        if self._coming is None and self._steps >= LATE_STEPS:
            self._coming, self._steps = self._store.hot.fetch_later(self._first), 0

    def settle(self) -> None:
        self._judge(self._store.hot.fetch_later(self._first))

    def _judge(self, fetched: Fetched) -> None:
        self._coming = None
        if first := int(fetched.array()):
            self._first.zero_()
            raise TrainingError(
                "the gradients of embedding rows must be small enough for finite sums (the sum of their squares finite), those "
                f"of step {first} are not; such steps updated no row"
            )


def sum_check(rows: OwnRows, store: EmbeddingStore) -> SumCheck:
    """Return the check of a loop's steps: on a device it is late, but not where several ranks check what they send."""
    late = store.torch_device.type != "cpu" and rows.group.is_alone
    return LateSums(rows, store) if late else SumCheck(rows)


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
        "not; no row was updated",
        faq="not-finite",
    )


def mean_is_finite(sums_UD: Tensor, ranks: int) -> bool:
    """Return whether a rank's sums of gradients are finite, and small enough for the mean over several ranks to be, however it is
    rounded: each then stays below the type's largest number by a few of its last digits."""
    if not sums_UD.numel():
        return True
    kind = torch.finfo(sums_UD.dtype)
    low, high = sums_UD.aminmax()
    return max(-float(low), float(high)) <= kind.max * (1 - 4 * ranks * kind.eps)
