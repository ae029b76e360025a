"""What happens when a window ends: staleness is judged, the policy is asked, guard rails hold, rows move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.device import all_rows_bytes, split_budget
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.placement import Migration
from adaptive_rec.policy import AccessView, Policy, SkippingPolicy, Verdict, fills_budget
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.reclassify.listed_rows import ListedRows
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.quality_guard import QualityGuard
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.horizon import FIRST_MEMORY, Memory, saved_memory

NOTHING = Migration(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

FIRST_WINDOW_STEPS = 8
"""The first windows are short and double in length, so that the first hot rows are found soon."""


@dataclass
class Window:
    """The steps since the last full window ended, or since the policy began."""

    began: int = 0
    first: bool = True
    """Whether no full window has ended yet."""

    def ends(self, step: int, reclassify_every: int) -> bool:
        """Whether a window ends after `step` steps: a full one, or in the first one a short one."""
        steps = step - self.began
        doubled = FIRST_WINDOW_STEPS <= steps and steps & (steps - 1) == 0
        return self.is_full(step, reclassify_every) or (self.first and doubled)

    def is_full(self, step: int, reclassify_every: int) -> bool:
        return step - self.began >= reclassify_every


@dataclass(frozen=True)
class MemoryChange:
    """Popularity is remembered for another time from now on."""

    memory: Memory
    window_steps: int
    caught_ratio: float
    """About what share of the last ticks' lookups it would have caught."""
    before_ratio: float
    """The same for the memory before."""

    def __str__(self) -> str:
        windows = f"windows of {self.window_steps} steps, decay {self.memory.window_decay:.2g}"
        return f"{windows}: catches {self.caught_ratio:.1%} of the lookups (before {self.before_ratio:.1%})"


class Reclassifier:
    """Turns a policy's wishes into stale classes and migrations, between two steps."""

    def __init__(self, policy: Policy, store: EmbeddingStore, observer: Observer) -> None:
        self.policy = policy
        self.store = store
        self.observer = observer
        self.stale_threshold = 0.0
        """The threshold that made the present stale classes."""
        self.window = Window()
        self.guard = QualityGuard()
        self.memory: Memory | None = None
        """How long popularity is remembered; None where the knobs tell."""
        self._listed = ListedRows()
        self._tick_began = 0
        self._judged_at: Mapping[str, float] = {}

    def begin(self, step: int, knobs: Knobs) -> None:
        """Place rows before the policy's first step, where it knows by then what it wants."""
        self.window = Window(step)
        self._migrate(step, knobs, max_moved_bytes=1 << 62)
        self.memory, self._tick_began = FIRST_MEMORY if self.policy.adapts_memory else None, step
        self.guard = QualityGuard()
        self.observer.try_memories(self.policy.adapts_memory)

    def end_tick(self, step: int, knobs: Knobs) -> bool:
        """Begin another tick where `reclassify_every` steps are over; whether they are."""
        if step - self._tick_began < knobs.reclassify_every:
            return False
        self._tick_began = step
        return True

    def adapt_memory(self, knobs: Knobs) -> MemoryChange | None:
        """Where a tick ends: find out which memory suits the data. Returns what changed, if anything did."""
        trials, before = self.observer.trials, self.memory
        if trials is None or before is None:
            return None
        self.memory = found = self.observer.end_tick(trials)
        if found == before:
            return None
        return MemoryChange(found, self.window_steps(knobs), trials.caught_ratio(found), trials.caught_ratio(before))

    def window_steps(self, knobs: Knobs) -> int:
        """Length of a full window."""
        return (self.memory.ticks if self.memory else 1) * knobs.reclassify_every

    def window_ends(self, step: int, knobs: Knobs) -> bool:
        return self.window.ends(step, self.window_steps(knobs))

    def end_window(self, step: int, knobs: Knobs, totals: Mapping[str, float]) -> Migration:
        """Judge staleness on the window's probe steps, then move rows, then begin a new window. Returns what moved.

        The first, short windows place rows only: they hold too few probe steps to tell which have settled.
        """
        ticks = max(1, (step - self.window.began) // knobs.reclassify_every)
        decay = self.memory.decay**ticks if self.memory else knobs.decay
        if self.window.is_full(step, self.window_steps(knobs)):
            self.window = Window(step, first=False)
            if (
                isinstance(self.policy, SkippingPolicy)
                and self.policy.tracks_movement
                and not self.policy.arranges_stream
            ):
                self._judge(self.policy, knobs, totals)
        return self.place_again(step, knobs, decay) if self.policy.tracks_popularity else NOTHING

    def judge_quality(self, knobs: Knobs) -> Verdict | None:
        """Where a tick ends: ask what follows from the losses of the guard's samples."""
        if not (isinstance(self.policy, SkippingPolicy) and self.policy.guards_quality):
            return None
        return self.policy.judge_quality(self.guard.end_window(knobs))

    def place_again(self, step: int, knobs: Knobs, decay: float = 1.0) -> Migration:
        """Move rows; out of turn, so without `decay`, when the budget or the policy is another or somebody asks for it."""
        migration = self._migrate(step, knobs, knobs.max_moved_bytes)
        self.observer.end_window(decay, migration)
        self.observer.count_stale()
        return migration

    def place_listed(self, rows: NDArray[np.int64], others_stay: bool) -> Migration:
        """Make the rows hot that a phase of the stream lists. Returns what moved."""
        migration = self._listed.place(self.store, rows, others_stay)
        if self.policy.tracks_popularity:
            self.observer.end_window(1.0, migration)
        self.observer.count_stale()
        return migration

    def change_policy(self, policy: Policy, step: int, knobs: Knobs) -> None:
        """Follow another policy from now on, with the tier it wants. No row is stale for it yet."""
        self.policy = policy
        self.stale_threshold = 0.0
        self.observer.set_stale(np.zeros(sum(self.store.device.capacities), dtype=np.bool_))
        self.place_again(step, knobs)
        self.begin(step, knobs)

    def restore(self, policy: Policy) -> None:
        """Follow the former policy again, after another one could not place its rows."""
        self.policy = policy

    def state(self) -> dict[str, Any]:
        return {
            "stale_threshold": self.stale_threshold,
            "window": asdict(self.window),
            "guard": self.guard.state(),
            "memory": self.memory and asdict(self.memory),
            "listed": self._listed.state(),
            "tick_began": self._tick_began,
            "judged_at": dict(self._judged_at),
            "policy": self.policy.state(),
        }

    def set_state(self, found: Saved) -> None:
        """Store and observer have theirs again."""
        self.stale_threshold = found.number("stale_threshold")
        window, memory = found.part("window"), found.maybe("memory")
        self.window = Window(window.integer("began"), window.flag("first"))
        self.guard.set_state(found.part("guard"))
        self.memory = saved_memory(memory) if memory is not None else None
        self._listed.set_state(found.part("listed"), self.store)
        self._tick_began = found.integer("tick_began")
        self._judged_at = found.numbers("judged_at")
        self.policy.set_state(found.part("policy"))

    def _judge(self, policy: SkippingPolicy, knobs: Knobs, totals: Mapping[str, float]) -> None:
        """Ask which hot rows are stale, telling what was skipped since the last time."""
        gain = {key: value - self._judged_at.get(key, 0) for key, value in totals.items()}
        self._judged_at = dict(totals)
        if knobs.action == "freeze":
            skipped_ratio = ratio(gain["row_updates_skipped"], gain["hot_row_updates"])
        else:
            skipped_ratio = ratio(gain["samples_seen"] - gain["samples_trained"], gain["samples_popular"])
        view = self.observer.movement_view(knobs, skipped_ratio)
        staleness = policy.find_stale(view)
        self.observer.set_stale(staleness.stale_H)
        self.observer.keep_movement(view.movement_H)
        self.stale_threshold = staleness.threshold
        self.observer.begin_measuring()

    def _migrate(self, step: int, knobs: Knobs, max_moved_bytes: int) -> Migration:
        """Ask the policy for each pool and move what the guard rails allow. Returns what moved."""
        store, monitored = self.store, self.policy.tracks_movement
        row_bytes = store.row_bytes_when(monitored)
        budget = self.policy.budget_bytes(knobs, all_rows_bytes(store.space, row_bytes))
        candidates = self.observer.tracker.candidates()
        views = [self.observer.access_view(pool, step, knobs, candidates) for pool in range(len(row_bytes))]
        capacities = self._capacities(views, row_bytes, budget, max_moved_bytes)
        if capacities != store.device.capacities or monitored != store.monitored:
            stale = self.observer.all_stale_rows()
            migration = store.resize(capacities, _ranked(views), monitored)
            self.observer.resize(sum(capacities))
            self.observer.set_stale_rows(stale)
            if self.policy.tracks_popularity:
                self.observer.keep_estimates(np.concatenate(store.device.row_of_slot))
            return migration
        parts = []
        for pool, view in enumerate(views):
            part = self._plan(view, max_moved_bytes // row_bytes[pool])
            max_moved_bytes -= part.moved_rows * row_bytes[pool]
            parts.append(part)
        migration = Migration(
            np.concatenate([part.promote for part in parts]), np.concatenate([part.demote for part in parts])
        )
        store.migrate(migration)
        if self.policy.tracks_popularity:
            self.observer.keep_estimates(migration.promote)
        return migration

    def _capacities(
        self, views: list[AccessView], row_bytes: list[int], budget_bytes: int, max_moved_bytes: int
    ) -> list[int]:
        """Slots of each pool: as the policy wishes within the budget and the pools' rows, or by their part of the lookups.

        A new sharing moves all hot rows home and back: it waits where that is more than may be moved.
        """
        wished = self.policy.share_budget(views, row_bytes, budget_bytes)
        if wished is None:
            return split_budget(self.store.space, row_bytes, budget_bytes)
        if len(wished) != len(views):
            raise TrainingError(f"share_budget of policy {self.policy.name} must name {len(views)} pools, got {wished}")
        capacities = [min(slots, pool.rows) for slots, pool in zip(wished, self.store.space.pools, strict=True)]
        used = sum(slots * size for slots, size in zip(capacities, row_bytes, strict=True))
        if used > budget_bytes or min(capacities) < 0:
            raise TrainingError(
                f"share_budget of policy {self.policy.name} must stay within {budget_bytes} bytes, "
                f"got {wished} slots of {used} bytes"
            )
        present = self.store.device.capacities
        too_much = 2 * self.store.device_bytes > max_moved_bytes
        return present if too_much and fills_budget(present, row_bytes, budget_bytes) else capacities

    def _plan(self, view: AccessView, max_moved_rows: int) -> Migration:
        wish = self.policy.place(view)
        return plan_migration(
            wish.rows,
            wish.scores,
            view.hot_rows,
            view.hot_scores,
            view.capacity_rows,
            view.knobs.hysteresis,
            max_moved_rows,
        )


def _ranked(views: list[AccessView]) -> NDArray[np.int64]:
    """All hot rows and candidates, the most popular first."""
    rows = np.concatenate([part for view in views for part in (view.hot_rows, view.candidate_rows)])
    scores = np.concatenate([part for view in views for part in (view.hot_scores, view.candidate_scores)])
    return rows[np.lexsort((rows, -scores))]
