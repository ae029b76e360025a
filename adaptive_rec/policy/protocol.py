"""The policy protocol: what a policy sees, and the values it answers with.

A policy wishes, the runtime acts: guard rails in `reclassify.py` hold for every policy. Policies are plain NumPy: they do no
I/O, touch no device and read no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.placement import RowSpace
from adaptive_rec.saved import Saved

if TYPE_CHECKING:
    from adaptive_rec.classify import ClassifiedBatch


@dataclass(frozen=True)
class BatchView:
    """What a policy sees of one mini-batch."""

    step: int
    split: bool
    """Whether popular samples are to run as a micro-batch of their own."""
    knobs: Knobs
    work: ClassifiedBatch
    stale_U: NDArray[np.bool_]
    """Distinct rows that are hot and stale."""
    random: np.random.Generator
    """Drawn from the run's seed and the step."""

    @property
    def samples(self) -> int:
        return self.work.batch.size

    @property
    def popular_B(self) -> NDArray[np.bool_]:
        return self.work.popular_B

    @property
    def hot_U(self) -> NDArray[np.bool_]:
        return self.work.hot_U


@dataclass(frozen=True)
class StepPlan:
    """How one mini-batch runs. The loss is a mean over the samples *before* skipping."""

    micro_batches: tuple[NDArray[np.int64], ...]
    """Sample numbers of each micro-batch; a sample in none of them is skipped."""
    weight_B: NDArray[np.float64] | None = None
    """Loss weight of each sample; none is 1 for all."""
    frozen_U: NDArray[np.bool_] | None = None
    """Distinct rows whose update is skipped."""
    guard_B: NDArray[np.bool_] | None = None
    """Samples drawn without regard to what they are, none of them skipped, whose losses tell what skipping costs."""


@dataclass(frozen=True)
class AccessView:
    """What a policy sees at the end of a window, for one pool. Rows are numbered in the joint row space."""

    step: int
    knobs: Knobs
    all_rows: range
    capacity_rows: int
    """Slots of the device tier."""
    candidate_rows: NDArray[np.int64]
    """Cold rows that were looked up lately."""
    candidate_scores: NDArray[np.float64]
    """Estimated lookups of each, decayed."""
    hot_rows: NDArray[np.int64]
    hot_scores: NDArray[np.float64]


@dataclass(frozen=True)
class MovementView:
    """What a policy sees of the hot rows' movement at the end of a window. Slots of all pools stand in one line (H)."""

    knobs: Knobs
    stale_H: NDArray[np.bool_]
    """Present class of each slot."""
    movement_H: NDArray[np.float64]
    """What the rule `stale_metric` says of the window's probe steps, infinite where it is unknown: fewer than
    `min_probe_touches` of them, or less than `min_touch_ratio`, touched the row."""
    touches_H: NDArray[np.int64]
    """Probe steps that touched the row; 0 where its movement is unknown."""
    sample_movement_L: NDArray[np.float64]
    """Movement of every lookup of some popular samples of the window's probe steps, sample after sample."""
    sample_offsets: NDArray[np.int64]
    skipped_ratio: float
    """What the window really skipped: share of popular samples, or of hot row updates under `freeze`."""


@dataclass(frozen=True)
class QualityView:
    """What a policy that guards quality sees every `reclassify_every` steps: progressive validation on the guard's samples."""

    knobs: Knobs
    samples: int
    logloss: float
    """Mean loss of the samples, each taken before it was trained; not a number where there were none."""
    standard_error: float


@dataclass(frozen=True)
class Verdict:
    """How a guard answers."""

    keep_probability: float
    """Chance that a sample which might be skipped is trained, at weight 1/chance; 1 skips nothing."""
    reason: str


@dataclass(frozen=True)
class Wish:
    """Rows a policy would like hot, with scores that rank them. Rows now hot stay unless better ones need their slots."""

    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, dtype=np.float64))


HOLD = Wish()
"""Leave the placement as it is."""


@dataclass(frozen=True)
class Staleness:
    """The stale class of every slot for the next window, and the threshold that made it."""

    stale_H: NDArray[np.bool_]
    threshold: float


class StreamView(Protocol):
    """What a policy that arranges the stream sees of it. Rows are numbered in the joint row space."""

    space: RowSpace
    batch_size: int
    seed: int
    epochs: range
    """The epochs that the run is still to train; of the first and the last perhaps a part."""
    options: PolicyConfig

    def knobs(self) -> Knobs:
        """The knobs as they are now."""
        ...

    def slots(self, pool: int) -> int:
        """Rows of a pool that may be hot, within the budget as it is now."""
        ...

    def samples(self, epoch: int) -> int:
        """Samples of an epoch that the run is to train."""
        ...

    def read(self, epoch: int, batch_size: int | None = None) -> Iterator[Batch]:
        """Those samples in the source's order, from their beginning, as often as it is called."""
        ...

    def rest(self) -> Iterator[Batch]:
        """The stream from where the run stands to its end, in the source's order: for policies that look ahead only."""
        ...


@dataclass(frozen=True)
class Phase:
    """A stretch of the stream between two decisions of a policy that arranges it."""

    name: str
    """As events and pages name it: "hot", "cold", "window"."""
    batches: Iterable[Batch]
    """Read lazily, on the reader's thread. See `Batch.skipped_samples` for samples that are left out."""
    hot_rows: NDArray[np.int64] | None = None
    """Rows to be hot meanwhile, the best first, as many as fit; None leaves the placement as it is."""
    others_stay: bool = False
    """Whether rows that are hot and not listed stay where nobody needs their slot; those last listed longest ago leave first."""
    measured: bool = False
    """Whether every step of it is a probe step: movement is measured from its beginning, nothing is skipped."""
    evaluated: bool = False
    """Whether held-out samples (`policy.schedule_samples`) are scored after it."""
    note: str = ""
    """What the journal is to say when it begins."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a phase came to."""

    logloss: float | None = None
    """Of the evaluation, where one was asked for."""
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Hot rows, where the phase was measured ..."""
    movement: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, dtype=np.float64))
    """... and how far each moved by its largest component; 0 for a row that was not touched."""


class Policy:
    """Base of all policies: every row where it is, plain steps."""

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """Whether results equal plain steps on the same batches."""
    tracks_popularity: ClassVar[bool] = False
    """Whether lookups are counted (and `place` asked at the end of each window)."""
    guards_quality: ClassVar[bool] = False
    """Whether its plans name guard samples (and `judge_quality` is asked every `reclassify_every` steps)."""
    adapts_memory: ClassVar[bool] = False
    """Whether windows and their decay follow the data; `reclassify_every` is the unit of their length then."""
    tracks_movement: ClassVar[bool] = False
    """Whether the movement of hot rows is measured (and `find_stale` asked)."""

    request_per_table: ClassVar[bool] = False
    """Whether every table is gathered and updated by a request of its own. Chosen before a run: rows are laid out so."""
    prefetches: ClassVar[bool] = True
    """Whether batches are made ready ahead of their step, `prefetch_depth` of them."""
    arranges_stream: ClassVar[bool] = False
    """Whether it looks at the stream before it is trained (see `arrange`): chosen before a run, not while it trains."""
    reorders_stream: ClassVar[bool] = False
    """Whether its phases do not keep the source's order. Such a run keeps its policy."""

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        """The stream in phases, `outcome = yield Phase(...)`; asked where `arranges_stream`. It runs on the training thread,
        between two steps. Every sample of the epochs must come once, or be counted as skipped.

        A run that goes on in the middle asks again and lets the phases that are over pass, with the outcomes they had: so the
        same stream and the same outcomes must give the same phases. Where the order is the source's, it asks for the stream
        from the present phase on."""
        raise NotImplementedError(f"policy {self.name} arranges the stream, so it must have a method arrange")

    def budget_bytes(self, knobs: Knobs, all_rows_bytes: int) -> int:
        """Device memory for hot rows."""
        return min(knobs.hot_budget_bytes, all_rows_bytes)

    def place(self, view: AccessView) -> Wish:
        """Which rows should be hot. Asked before the first step and at the end of each window, for each pool."""
        return HOLD

    def share_budget(self, views: list[AccessView], row_bytes: list[int], budget_bytes: int) -> list[int] | None:
        """Slots of each pool within the budget; None shares it by the pools' part of the lookups. Asked where `place` is."""
        return None

    def find_stale(self, view: MovementView) -> Staleness:
        """Which hot rows are stale until the next window ends."""
        return Staleness(np.zeros_like(view.stale_H), 0.0)

    def judge_quality(self, view: QualityView) -> Verdict | None:
        """What follows from the losses of the guard's samples; None changes nothing."""
        return None

    def state(self) -> dict[str, Any]:
        """What it remembers from one call to the next, for a checkpoint: names of numbers, texts, arrays and such mappings."""
        return {}

    def set_state(self, found: Saved) -> None:
        """Remember what `state` said, each value asked for by its name."""

    def plan(self, view: BatchView) -> StepPlan:
        """How a mini-batch runs. Not asked on probe steps of policies that skip: those train and update everything."""
        return StepPlan(whole_or_split(view))


def whole_or_split(view: BatchView, keep_B: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int64], ...]:
    """Micro-batches of the kept samples: one, or popular samples first and then the others."""
    keep_B = np.ones(view.samples, dtype=bool) if keep_B is None else keep_B
    parts = (keep_B & view.popular_B, keep_B & ~view.popular_B) if view.split else (keep_B,)
    chosen = (np.flatnonzero(part) for part in parts)
    return tuple(samples for samples in chosen if len(samples))


def fills_budget(slots: list[int], row_bytes: list[int], budget_bytes: int) -> bool:
    """Whether the pools' slots stay within a budget and leave no room for a row more of each."""
    used = sum(count * size for count, size in zip(slots, row_bytes, strict=True))
    return 0 <= budget_bytes - used < sum(row_bytes)
