"""Policies that arrange the stream: they look at it before it is trained and yield it in phases."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.protocol import Policy


class StreamView(Protocol):
    """The stream as a policy that arranges it sees it. Rows are numbered in the joint row space."""

    space: RowSpace
    batch_size: int
    seed: int
    epochs: range
    """The epochs that the run still trains; the first and the last may be cut short."""
    options: PolicyConfig

    def knobs(self) -> Knobs:
        """Return the knobs as they are now."""
        ...

    def slots(self, pool: int) -> int:
        """Return how many rows of a pool may be hot within the present budget."""
        ...

    def samples(self, epoch: int) -> int:
        """Return how many samples of an epoch the run trains."""
        ...

    def read(self, epoch: int, batch_size: int | None = None) -> Iterator[Batch]:
        """Read those samples from their beginning, in the source's order. May be called any number of times."""
        ...

    def rest(self) -> Iterator[Batch]:
        """Read the stream from where the run stands to its end, in the source's order. Only for policies that keep this order.
        With raw ids no more than `window_batches` ahead of the batches under way, by one reader."""
        ...


@dataclass(frozen=True)
class Phase:
    """A stretch of the stream between two decisions of a policy that arranges it."""

    name: str
    """Name in events and on pages: "hot", "cold", "window"."""
    batches: Iterable[Batch]
    """Read lazily, on the reader's thread. `Batch.skipped_samples` counts samples that are left out."""
    hot_rows: NDArray[np.int64] | None = None
    """Rows that are hot during the phase, the best first, as many as fit; None leaves the placement as it is."""
    others_stay: bool = False
    """Whether hot rows that are not listed stay until their slot is needed; those listed longest ago leave first."""
    measured: bool = False
    """Whether every step is a probe step: movement is measured from the phase's beginning, and nothing is skipped."""
    evaluated: bool = False
    """Whether `policy.schedule_samples` held-out samples are scored at its end."""
    note: str = ""
    """Text for the journal when the phase begins."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a phase."""

    logloss: float | None = None
    """Loss on the held-out samples, where the phase was evaluated."""
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Hot rows, where the phase was measured."""
    movement: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, dtype=np.float64))
    """Largest component of the movement of each of these rows; 0 for a row that was not touched."""


class ArrangingPolicy(Policy):
    """Base of policies that arrange the stream. Such a policy is chosen before a run, not while it trains."""

    arranges_stream: ClassVar[bool] = True
    reorders_stream: ClassVar[bool] = False
    """Whether its phases change the source's order. Such a run keeps its policy to the end."""
    tracks_movement: ClassVar[bool] = False
    """Whether phases may be measured."""

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        """Yield the stream in phases: `outcome = yield Phase(...)`. Runs on the training thread, between two steps. Every sample
        of the epochs must come once, or be counted as skipped.

        A run that is resumed in the middle calls this again and passes over the finished phases, sending the outcomes they had.
        So the same stream and the same outcomes must give the same phases. A policy that keeps the source's order is given the
        stream from the present phase on."""
        raise NotImplementedError(f"policy {self.name} arranges the stream, so it must have a method arrange")
