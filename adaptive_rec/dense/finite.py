"""Checks that a step's losses and gradients are finite, before or after its update.

On the CPU the check comes before the update: a faulty step ends the run or is left out, and rows, optimizer state and dense part
stay as they were. On a device the update does not wait for the check, so the run ends some steps later. A checkpoint waits until
all steps are checked, so the results of a faulty step are never saved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.watch_rule import WatchRule
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError, NotFiniteError, TrainingError
from adaptive_rec.live.telemetry import Event
from adaptive_rec.placement import RowSpace

if TYPE_CHECKING:
    from adaptive_rec.dense.replayed import ReplayedDense

IN_A_ROW_LIMIT = 10
"""Number of batches left out in a row at which the run ends, as the fault is not in the batches."""

LATE_STEPS = 8
"""Steps between two checks on a device; the result of a check comes up to half as many steps later."""

SHOWN_LOOKUPS = 8
KEPT_LOOKUPS = 64
"""Limits of a sample's lookups in an event's text and in its details."""


Word = Literal["id", "row"]
"""What the numbers of a batch's lookups are called in texts: with raw ids they are numbers of rows."""


def step_check(
    on_nan: str, dense: DensePart, store: EmbeddingStore, word: Word = "id", rules: Sequence[WatchRule] = ()
) -> StepCheck:
    """Return the check of a run. `rules`: what the watchdog does where a loss is not finite; a rule that does more than warn acts
    after the step, whose batch is left out. Raises ConfigError where a device run is to leave batches out."""
    if not dense.is_replayed:
        leaves_out = on_nan == "skip_batch" or any(rule.action != "warn" for rule in rules)
        return CheckedBefore(dense, store.peers.batch_space, leaves_out, word)
    for rule in rules:
        if rule.action not in ("warn", "rollback"):
            raise ConfigError(
                "watch.rules: `loss is nan` must warn or roll back on a device, where updates do not wait for the check, "
                f"got {rule.text!r}; set run.device=cpu"
            )
    if on_nan != "stop":
        raise ConfigError(
            f"run.on_nan must be stop on a device, where updates do not wait for the check, got {on_nan}; "
            "set run.device=cpu"
        )
    from adaptive_rec.dense.replayed import ReplayedDense

    assert isinstance(dense, ReplayedDense)
    return CheckedLate(dense, store, word)


class StepCheck(ABC):
    """The check of a run's steps, called before each update by the training thread."""

    in_a_row = 0
    """Batches left out in a row up to now."""

    @abstractmethod
    def passes(self, work: ClassifiedBatch, position_B: NDArray[np.int64], step: int) -> bool:
        """Return whether the update of a step (counted from 1) may be made. Raises TrainingError where the run ends.

        `position_B` is each sample's line in the gradients, -1 for a skipped sample.
        """

    def set_in_a_row(self, batches: int) -> None:
        """Restore the number of batches left out in a row, where a run resumes."""
        self.in_a_row = batches

    def events(self) -> list[Event]:
        """Return the events of steps left out that were not returned before."""
        return []

    def settle(self) -> None:  # noqa: B027 - only a device's steps are checked late
        """Wait until all steps are checked. Raises TrainingError where one was faulty."""


@dataclass(frozen=True)
class StepFault:
    """A loss or gradient that an update must not use."""

    what: str
    """Rule and value."""
    where: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class CheckedBefore(StepCheck):
    """The check on the CPU: one pass over all gradients before the update, and a search for the fault if that finds one."""

    def __init__(self, dense: DensePart, space: RowSpace, leaves_out: bool, word: Word = "id") -> None:
        self._dense = dense
        self._word: Word = word
        self._space = space
        self._leaves_out = leaves_out
        self._events: list[Event] = []

    def passes(self, work: ClassifiedBatch, position_B: NDArray[np.int64], step: int) -> bool:
        # A row's gradient is a sum over its lookups; its square is at most their number times the sum of all squares. Over ranks
        # the sum is at most their number times the largest. So under this limit no sum and no square of an update overflows.
        limit = torch.finfo(self._dense.dtype).max / max(1, work.batch.lookups) / self._dense.group.ranks**2
        sound = self._dense.squares() <= limit and math.isfinite(float(self._dense.step_loss))
        if self._dense.group.all_true(sound):
            self.in_a_row = 0
            return True
        own = None if sound else find_fault(self._dense, self._space, work.batch, position_B, limit, step, self._word)
        text = "; ".join(filter(None, self._dense.group.share(f"{own.what}{own.where}" if own else "")))
        self.in_a_row += 1
        if not self._leaves_out:
            raise NotFiniteError(text, step)
        if self.in_a_row == IN_A_ROW_LIMIT:
            raise TrainingError(
                f"batches that are left out must be fewer than {IN_A_ROW_LIMIT} in a row, this is one more: {text}",
                faq="not-finite",
            )
        details = {"samples": work.batch.samples_of_all_ranks, "in_a_row": self.in_a_row, **(own.details if own else {})}
        self._events.append(Event(step, "nan", f"batch left out: {text}", details))
        return False

    def events(self) -> list[Event]:
        found, self._events = self._events, []
        return found


class CheckedLate(StepCheck):
    """The check on a device, which adds up losses and gradients; the sum is fetched in the background every `LATE_STEPS` steps.

    Batches are kept until their steps are checked, about `LATE_STEPS` + `LATE_STEPS` / 2 of them.
    """

    def __init__(self, dense: ReplayedDense, store: EmbeddingStore, word: Word = "id") -> None:
        self._dense = dense
        self._word: Word = word
        self._store = store
        self._steps: deque[tuple[int, Batch]] = deque()
        """Steps that are not checked yet, the present one last."""
        self._sound = 0
        """Number of steps that were checked."""
        self._coming: Fetched | None = None

    def passes(self, work: ClassifiedBatch, position_B: NDArray[np.int64], step: int) -> bool:
        if self._coming is not None and self._store.peers.has_arrived(self._coming):
            self._judge(self._coming)
        if self._coming is None and len(self._steps) >= LATE_STEPS:
            self._coming = self._store.hot.fetch_later(self._dense.health)
        if not self._steps or self._steps[-1][0] != step:  # a step that was short of memory is repeated
            self._steps.append((step, work.batch))
        return True

    def settle(self) -> None:
        self._judge(self._store.hot.fetch_later(self._dense.health))

    def _judge(self, fetched: Fetched) -> None:
        self._coming = None
        total, sound = fetched.array().tolist()
        for _ in range(int(sound) - self._sound):
            self._steps.popleft()
        self._sound = int(sound)
        if not math.isfinite(total):
            step, batch = self._steps[0]
            bad, own = _bad_input(batch), ""
            if bad:
                lookups = _shown(_lookups(self._store.peers.batch_space, batch, bad[0]), self._word)
                own = f"mend the data: {bad[1]} of sample {bad[0]} is no finite number (it looks up {lookups})"
            found = [text for text in self._store.group.share(own) if text]
            remedy = "; ".join(found) or "lower the learning rates"
            text = f"losses and gradients must stay finite, those of step {step} are not, for {_position(batch)}; {remedy}"
            raise NotFiniteError(text, step)


def find_fault(
    dense: DensePart, space: RowSpace, batch: Batch, position_B: NDArray[np.int64], limit: float, step: int, word: Word
) -> StepFault:
    """Find the first faulty sample of a step, or the faulty parameter."""
    losses_L = dense.losses()
    squares_L = torch.zeros(len(losses_L), dtype=torch.float64)
    for part in dense.gradients():
        squares_L += part.double().square().sum(dim=(1, 2))
    bad_L = (~(losses_L.isfinite() & squares_L.isfinite())).numpy()
    if not bad_L.any():
        for name, parameter in dense.model.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return StepFault(
                    f"gradients must stay finite, that of parameter {name} is not in step {step}",
                    f", though those of all samples are, for {_position(batch)}; lower optimizer.dense_lr",
                )
        bad_L = (squares_L == squares_L.max()).numpy()
    samples = np.flatnonzero(position_B >= 0)
    blamed = samples[bad_L[position_B[samples]]]
    line = int(position_B[blamed[0]])
    loss, gradient = float(losses_L[line]), _first_bad(dense.gradients(), line)
    if not math.isfinite(loss):
        what = f"the loss must stay finite, got {loss} in step {step}"
    elif gradient is not None:
        what = f"gradients must stay finite, got {gradient} in step {step}"
    else:
        what = (
            f"gradients must be small enough for finite updates (their length under {math.sqrt(limit):.0e}), got more in "
            f"step {step}"
        )
    lookups = _lookups(space, batch, int(blamed[0]))
    where = f" for sample {blamed[0]} of {batch.size} ({len(blamed)} such) of {_position(batch)}, which looks up "
    details = {
        "epoch": batch.position.epoch,
        "offset": batch.position.offset,
        "sample": int(blamed[0]),
        "bad_samples": len(blamed),
        "lookups": [[table, row] for table, row in lookups[:KEPT_LOOKUPS]],
    }
    bad = _bad_input(batch)
    remedy = f"mend the data: {bad[1]} of sample {bad[0]} is no finite number" if bad else "lower the learning rates"
    return StepFault(what, f"{where}{_shown(lookups, word)}; {remedy}", details)


def _first_bad(gradients: list[Tensor], line: int) -> float | None:
    """Return a line's first gradient that is not finite; None where only their squares are not."""
    parts = (part[line].reshape(-1) for part in gradients)
    return next((float(part[~part.isfinite()][0]) for part in parts if not bool(part.isfinite().all())), None)


def _position(batch: Batch) -> str:
    position = batch.position
    of = "the validation slice" if position.on_slice else f"epoch {position.epoch}"
    return f"the batch up to sample {position.offset:,} of {of}"


def _lookups(space: RowSpace, batch: Batch, sample: int) -> list[tuple[str, int]]:
    """Return table and number of each lookup of a sample."""
    found, features = [], len(space.features)
    for f, feature in enumerate(space.features):
        bag = sample * features + f
        ids = batch.ids_N[batch.offsets[bag] : batch.offsets[bag + 1]]
        found += [(space.tables[feature.table].name, int(id_)) for id_ in ids]
    return found


def _shown(lookups: list[tuple[str, int]], word: Word) -> str:
    if not lookups:
        return "nothing"
    more = len(lookups) - SHOWN_LOOKUPS
    shown = ", ".join(f"{table} {word} {id_}" for table, id_ in lookups[:SHOWN_LOOKUPS])
    return f"{shown} and {more} more" if more > 0 else shown


def _bad_input(batch: Batch) -> tuple[int, str] | None:
    """Return the first sample of a batch with an input that is not finite, and the input's name."""
    bad_B = ~(np.isfinite(batch.dense_BX).all(axis=1) & np.isfinite(batch.labels_B))
    if not bad_B.any():
        return None
    sample = int(np.flatnonzero(bad_B)[0])
    bad_X = np.flatnonzero(~np.isfinite(batch.dense_BX[sample]))
    return sample, f"dense feature {bad_X[0]}" if len(bad_X) else "the label"
