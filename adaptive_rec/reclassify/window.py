"""The end of a window: staleness is judged, the policy wishes for hot rows, and the guard rails limit the moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.device import all_rows_bytes, split_budget
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.placement import Migration
from adaptive_rec.policy import AccessView, MovementView, Policy, SkippingPolicy, fills_budget
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.reclassify.listed_rows import ListedRows
from adaptive_rec.reclassify.observer import Observer, tracked_slots
from adaptive_rec.reclassify.window_length import MemoryChange, Window, lasting_decay
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.horizon import FIRST_MEMORY, Memory, saved_memory

NOTHING = Migration(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class Reclassifier:
    """Turns a policy's wishes into stale classes and migrations between two steps."""

    def __init__(self, policy: Policy, store: EmbeddingStore, observer: Observer) -> None:
        self.policy = policy
        self.store = store
        self._observer = observer
        self._stale = observer.stale
        self.stale_threshold = 0.0
        """The threshold that made the present stale classes."""
        self.window = Window()
        self.memory: Memory | None = None
        """How long popularity is remembered; None where the knobs set it."""
        self._listed = ListedRows()
        self._tick_began = 0
        self._judged_at: Mapping[str, float] = {}

    def begin(self, step: int, knobs: Knobs) -> None:
        """Place rows before the policy's first step, if it can choose them by then, and start its first window."""
        self.window = Window(step)
        self._migrate(self._observer.record(step, knobs).access, knobs, max_moved_bytes=1 << 62)
        self.memory, self._tick_began = FIRST_MEMORY if self.policy.adapts_memory else None, step
        self._observer.try_memories(self.policy.adapts_memory)

    def end_tick(self, step: int, knobs: Knobs) -> bool:
        """Start another tick where `reclassify_every` steps are over. Returns whether they are."""
        if step - self._tick_began < knobs.reclassify_every:
            return False
        self._tick_began = step
        return True

    def adapt_memory(self, knobs: Knobs) -> MemoryChange | None:
        """Choose the memory that suits the data, at a tick's end. Returns the change, if there is one."""
        trials, before = self._observer.end_tick(), self.memory
        if trials is None or before is None:
            return None
        self.memory = found = trials.best()
        if found == before:
            return None
        return MemoryChange(found, self.window_steps(knobs), trials.caught_ratio(found), trials.caught_ratio(before))

    def window_steps(self, knobs: Knobs) -> int:
        """Return the length of a full window."""
        return (self.memory.ticks if self.memory else 1) * knobs.reclassify_every

    def window_ends(self, step: int, knobs: Knobs) -> bool:
        return self.window.ends(step, self.window_steps(knobs))

    def end_window(self, step: int, knobs: Knobs, totals: Mapping[str, float]) -> Migration:
        """Judge staleness on the window's probe steps, move rows and start a new window. Returns what moved.

        The first, short windows only place rows: they hold too few probe steps to judge which rows have settled.
        """
        policy, skipped_ratio = self.policy, None
        decay = self.window_decay(step, knobs)
        if self.window.is_full(step, self.window_steps(knobs)):
            self.window = Window(step, first=False)
            if policy.tracks_movement and not policy.arranges_stream:
                skipped_ratio = self._skipped_ratio(knobs, totals)
        lists_stale = isinstance(policy, SkippingPolicy) and policy.reads_stale_lookups(knobs)
        record = self._observer.record(step, knobs, policy.tracks_popularity, skipped_ratio, lists_stale)
        if record.movement is not None and isinstance(policy, SkippingPolicy):
            self._judge(policy, record.movement, record.own_H)
        if policy.tracks_popularity:
            return self._place(record.access, knobs, decay)
        if policy.counts_lookups(knobs):
            self._observer.decay_counts(decay)
        return NOTHING

    def window_decay(self, step: int, knobs: Knobs) -> float:
        """Return the factor of the counts of a window that ends with this step. Ranks call it together."""
        if self.memory:
            return self.memory.decay ** max(1, (step - self.window.began) // knobs.reclassify_every)
        if not isinstance(knobs.decay, str):
            return knobs.decay
        own = np.array([self._observer.tracker.cold_met, sum(self.store.hot.tier.capacities)])
        cold_met, slots = self.store.group.total(own).tolist()
        return lasting_decay(cold_met / knobs.sample_ratio, slots)

    def place_again(self, step: int, knobs: Knobs) -> Migration:
        """Move rows before a window ends: the budget or the policy changed, or a command requested it. Returns what moved."""
        return self._place(self._observer.record(step, knobs).access, knobs)

    def place_listed(self, rows: NDArray[np.int64], others_stay: bool) -> Migration:
        """Make the rows hot that a phase of the stream lists. Returns what moved."""
        migration = self._listed.place(self.store, rows, others_stay)
        if self.policy.tracks_popularity:
            self._observer.end_window(1.0, migration)
        self._stale.count()
        return migration

    def change_policy(self, policy: Policy, step: int, knobs: Knobs) -> None:
        """Follow another policy from now on, with the device tier it needs. At first no row is stale, and none is listed."""
        self.policy, self._listed = policy, ListedRows()
        self.stale_threshold = 0.0
        self._stale.clear()
        self.place_again(step, knobs)
        self.begin(step, knobs)

    def restore(self, policy: Policy, step: int, knobs: Knobs) -> None:
        """Place rows for the former policy and knobs again, after others failed. A policy that had changed begins anew: ranks may
        have come to different points of the change."""
        if policy is self.policy:
            self.place_again(step, knobs)
        else:
            self.change_policy(policy, step, knobs)

    def state(self) -> dict[str, Any]:
        return {
            "stale_threshold": self.stale_threshold,
            "window": asdict(self.window),
            "memory": self.memory and asdict(self.memory),
            "listed": self._listed.state(),
            "tick_began": self._tick_began,
            "judged_at": dict(self._judged_at),
            "policy": self.policy.state(),
        }

    def set_state(self, found: Saved) -> None:
        """Restore the saved state. Store and observer must be restored before."""
        self.stale_threshold = found.number("stale_threshold")
        window, memory = found.part("window"), found.maybe("memory")
        self.window = Window(window.integer("began"), window.flag("first"))
        if found.has("guard"):  # of earlier versions, whose guard added up losses here
            found.ignore("guard")
        self.memory = saved_memory(memory) if memory is not None else None
        self._listed.set_state(found.part("listed"), self.store)
        self._tick_began = found.integer("tick_began")
        self._judged_at = found.numbers("judged_at")
        self.policy.set_state(found.part("policy"))

    def _skipped_ratio(self, knobs: Knobs, totals: Mapping[str, float]) -> float:
        """Return the share that was skipped since staleness was last judged."""
        # Checkpoints keep these totals, and there `hot_row_updates` always included skipped updates.
        now = {**totals, "hot_row_updates": totals["hot_row_updates"] + totals["row_updates_skipped"]}
        gain = {key: value - self._judged_at.get(key, 0) for key, value in now.items()}
        self._judged_at = now
        if knobs.action == "freeze":
            return ratio(gain["row_updates_skipped"], gain["hot_row_updates"])
        return ratio(gain["samples_seen"] - gain["samples_trained"], gain["samples_popular"])

    def _judge(self, policy: SkippingPolicy, movement: MovementView, own_H: slice) -> None:
        """Mark the hot rows that the policy finds stale. It sees those of all ranks, so that all of them have one threshold."""
        staleness = policy.find_stale(movement)
        self._stale.compare(movement.stale_H, staleness.stale_H)
        self._stale.mark(staleness.stale_H[own_H])
        self.stale_threshold = staleness.threshold

    def _place(self, views: list[AccessView], knobs: Knobs, decay: float = 1.0) -> Migration:
        migration = self._migrate(views, knobs, knobs.max_moved_bytes)
        self._observer.end_window(decay, migration)
        self._stale.count()
        self.place_in_memory(knobs)
        return migration

    def place_in_memory(self, knobs: Knobs) -> None:
        """Move cold rows between disk and host memory, once the hot rows are placed, where a device run has both: the most
        popular of those that are not hot are in memory. Before any lookup was counted nothing moves."""
        store, memory = self.store, self.store.cold.memory
        if memory is None or not self.policy.tracks_popularity:
            return
        rows = self._observer.tracker.candidates()
        outside = rows[(store.index.slot_of_row[rows] < 0) & (memory.slot_of_row[rows] < 0)]
        pools = enumerate(store.space.pools)
        store.place_in_memory(_joined([self._plan_memory(pool, spec.select(outside), knobs) for pool, spec in pools]))

    def _plan_memory(self, pool: int, outside: NDArray[np.int64], knobs: Knobs) -> Migration:
        """Plan the moves of a pool there, within the limits that hot rows have too. `outside`: candidates on the disk."""
        store, memory, tracker = self.store, self.store.cold.memory, self._observer.tracker
        rows, slots = memory.rows_of(pool), memory.capacities[pool]
        if len(outside) <= slots - len(rows):
            return Migration(outside, rows[:0])  # whatever their popularity is
        of_outside, of_rows = (tracker.estimate(some, store.threads) for some in (outside, rows))
        most = knobs.max_moved_bytes // store.hot.row_bytes(monitored=False)[pool]
        limits = slots, knobs.hysteresis, most, store.threads
        return plan_migration(outside, of_outside, rows, of_rows, memory.slot_of_row, *limits)

    def _migrate(self, views: list[AccessView], knobs: Knobs, max_moved_bytes: int) -> Migration:
        """Move the rows that the policy wishes for, within the guard rails. Returns what moved."""
        store, monitored = self.store, self.policy.records_movement(knobs)
        row_bytes = store.hot.row_bytes(monitored)
        budget = self.policy.budget_bytes(knobs, all_rows_bytes(store.space, row_bytes))
        capacities = self._capacities(views, row_bytes, budget, max_moved_bytes)
        resized = capacities != store.hot.tier.capacities or monitored != store.hot.monitored
        if resized:
            stale = self._stale.rows()
            migration = store.resize(capacities, _ranked(views), monitored)
            self._observer.resize(tracked_slots(self.policy, knobs, store.space, row_bytes, sum(capacities)))
            self._stale.mark_rows(stale)
        else:
            migration = self._plan(views, row_bytes, max_moved_bytes)
            store.migrate(migration)
        if self.policy.tracks_popularity:
            self._observer.show_estimates(np.concatenate(store.hot.tier.row_of_slot) if resized else migration.promote)
        return migration

    def _capacities(
        self, views: list[AccessView], row_bytes: list[int], budget_bytes: int, max_moved_bytes: int
    ) -> list[int]:
        """Return the slots of each pool: as the policy wishes within the budget, or by the pools' part of the lookups.

        A new sharing moves all hot rows to the host and back, so it waits where that is more than may be moved.
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
        present = self.store.hot.tier.capacities
        too_much = 2 * self.store.hot.bytes > max_moved_bytes
        return present if too_much and fills_budget(present, row_bytes, budget_bytes) else capacities

    def _plan(self, views: list[AccessView], row_bytes: list[int], max_moved_bytes: int) -> Migration:
        """Plan the moves of all pools, which share the limit on bytes moved."""
        parts = []
        for view, size in zip(views, row_bytes, strict=True):
            wish, hysteresis = self.policy.place(view), view.knobs.hysteresis
            self._check_rows(wish.rows, view.all_rows)
            rows = wish.rows, wish.scores, view.hot_rows, view.hot_scores
            slot_of_row = None if wish.rows is view.candidate_rows else self.store.index.placement.slot_of_row
            limits = view.capacity_rows, hysteresis, max_moved_bytes // size
            parts.append(plan_migration(*rows, slot_of_row, *limits, self.store.threads))
            max_moved_bytes -= parts[-1].moved_rows * size
        return _joined(parts)

    def _check_rows(self, rows: NDArray[np.int64], allowed: range) -> None:
        """Raise TrainingError where the policy has listed a row of another pool, or none."""
        if len(rows) and not (allowed.start <= rows.min() and rows.max() < allowed.stop):
            raise TrainingError(
                f"rows that place of policy {self.policy.name} lists must lie in [{allowed.start}, {allowed.stop}), "
                f"got {rows.min()} to {rows.max()}"
            )


def _joined(parts: list[Migration]) -> Migration:
    """Return the moves of all pools."""
    return Migration(*(np.concatenate([getattr(part, way) for part in parts]) for way in ("promote", "demote")))


def _ranked(views: list[AccessView]) -> NDArray[np.int64]:
    """Return all hot rows and candidates, the most popular first."""
    rows = np.concatenate([part for view in views for part in (view.hot_rows, view.candidate_rows)])
    scores = np.concatenate([part for view in views for part in (view.hot_scores, view.candidate_scores)])
    return rows[np.lexsort((rows, -scores))]
