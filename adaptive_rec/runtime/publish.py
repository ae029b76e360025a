"""Keeps the shared state of a run up to date: a pulse at every step, the board at every report, the placement at every window."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.sketch_numpy import UNIT
from adaptive_rec.live.mailbox import Mailbox
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.live.telemetry import finite
from adaptive_rec.reclassify.observer import SKETCH_LIMIT_BYTES, Observer
from adaptive_rec.runtime.events import stopped_early
from adaptive_rec.state.run_state import RunState
from adaptive_rec.system.systemd import Systemd
from adaptive_rec.tracking.count_min import CountMinSketch

NO_SLOTS = Tier(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.float32), np.empty(0, np.float32))


class Publisher:
    """Publishes the run to other processes. Without a writer (when the run is not served) it publishes nothing."""

    def __init__(self, state: RunState, observer: Observer, mailbox: Mailbox) -> None:
        self._state = state
        self._observer = observer
        self._mailbox = mailbox
        self.writer: StateWriter | None = None
        self._placement: dict[str, Any] = {}
        self._systemd = Systemd()
        self._phase_since = time.monotonic()
        """When the present phase began, by the clock `time.monotonic`, which processes of a machine share."""
        self._began_at_step: int | None = None
        """The step at which this process began to train."""

    def open(self) -> StateWriter:
        """Start to publish, with the run as it is now."""
        store, space = self._state.store, self._state.store.peers.batch_space
        homes = store.cold.on_disk and store.peers.owns_all, store.cold.memory is not None
        pool_rows = [pool.rows for pool in space.pools]
        writer = StateWriter(pool_rows, SKETCH_LIMIT_BYTES // 4, len(space.tables), store.group.ranks, *homes)
        self.take_over(writer)
        if not store.group.is_alone:  # until the ranks place their rows together, none is hot
            self._write(np.empty(0, np.int32), [NO_SLOTS for _ in space.pools])
        return writer

    def take_over(self, writer: StateWriter) -> None:
        """Start to publish where another run with the same tables has published. Several processes show its placement until they
        place their rows together."""
        store, self.writer = self._state.store, writer
        if store.cold.on_disk and store.peers.owns_all:
            store.cold.share_addresses(writer.address_R)
        if store.cold.memory is not None:
            store.cold.memory.share(writer.memory_slot_R)
        if store.group.is_alone:
            self.placement()
        self.board()

    def hand_over(self) -> StateWriter | None:
        """Stop publishing. Returns where this run has published, for another one."""
        writer, self.writer = self.writer, None
        return writer

    def close(self) -> None:
        """Stop publishing."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def enter(self, phase: str) -> None:
        """Publish the run's phase, one of those of `RunState.phase`."""
        self._state.enter(phase)
        self._phase_since = time.monotonic()
        if phase == "training" and self._began_at_step is None:
            self._began_at_step = self._state.step
        self.pulse()
        self.board()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Publish a phase for the body of a `with`, then the one before."""
        before = self._state.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def pulse(self) -> None:
        """Publish a sign of life: a step is done, or the run is paused."""
        self._systemd.alive()
        if self.writer is not None:
            self.writer.pulse(self._state.step)

    def board(self) -> None:
        """Publish the small values: phase, knobs, newest snapshot and evaluation."""
        if self.writer is None:
            return
        self.writer.write_board(self.values())
        self.writer.pulse(self._state.step)

    def values(self) -> dict[str, Any]:
        """Return the small values that are published."""
        state = self._state
        snapshot, evaluation = self._mailbox.newest, state.evaluation
        values: dict[str, Any] = finite(
            {
                "phase": state.phase,
                "phase_since": self._phase_since,
                "began_at_step": self._began_at_step,
                "step": state.step,
                "steps_total": state.steps_total,
                **self._epochs(),
                "snapshot": snapshot.as_dict() if snapshot else None,
                "evaluation": evaluation.figures() if evaluation else None,
                "best_evaluation": state.trend.best and asdict(state.trend.best),
                "best_metric": state.trend.metric.name,
                "stopped_early": stopped_early(state).text if state.stopped_early else None,
                "held_out": state.held_out and state.held_out.figures(),
                "overfit": state.trend.overfit and asdict(state.trend.overfit),
                "knobs": state.knobs.model_dump(),
                "knobs_step": state.knobs_step,
                "knob_changes": state.knob_changes,
                "rollbacks": state.rollbacks,
                "placement": {**self._placement, **self._memory()},
                "checkpoint": state.checkpoints.newest,
                "checkpoints": state.checkpoints.figures(),
            }
        )
        return values

    def _epochs(self) -> dict[str, int | None]:
        """Return the pass over the data under way, from 1, and the passes at most. Where a user's loop reads the data, or it is
        followed, they are not known."""
        if (passes := (state := self._state).passes) is None:
            return {"epoch": None, "epochs": None}
        epoch = state.epoch if state.position.on_slice else min(state.position.epoch + 1, passes)
        return {"epoch": epoch, "epochs": passes}

    def placement(self) -> None:
        """Publish the tier, popularity and movement of rows, and their counts on the board. Of several processes each must call
        it, and rank 0 publishes the rows of all."""
        if not self._state.store.group.tell(self.writer is not None):
            return
        slot_of_row, tiers = self._state.store.peers.shown_placement()
        self._placement = self._counts()
        if self.writer is not None:
            self._write(slot_of_row, tiers)

    def _write(self, slot_of_row: NDArray[np.int32], tiers: list[Tier]) -> None:
        assert self.writer is not None
        store = self._state.store
        self.writer.write_placement(self._state.step, store.index.placement.moves, slot_of_row, tiers, None)
        counter = self._observer.tracker.counter  # after the slots, as the counts decay meanwhile
        if store.group.is_alone and isinstance(counter, CountMinSketch):  # a rank's sketch knows its own rows only
            self.writer.write_sketch((counter.counters, counter.seeds, UNIT))
        self.board()

    def _counts(self) -> dict[str, Any]:
        store = self._state.store
        pools = [store.space.table_range(table)[0] for table in range(len(store.space.tables))]
        hot_rows, stale_rows = store.group.total(np.stack([store.index.hot_rows_T, self._observer.stale.rows_T])).tolist()
        return {
            "version": store.index.placement.moves,
            "step": self._state.step,
            "hot_rows": hot_rows,
            "stale_rows": stale_rows,
            "row_bytes": [store.hot.row_bytes()[pool] for pool in pools],
            "device_bytes": int(store.group.total(np.array([store.hot.bytes]))[0]),
        }

    def _memory(self) -> dict[str, int]:
        """Return the bytes that also change between windows: the budget of all ranks with knobs, staging and peak with every
        batch."""
        store = self._state.store
        return {
            "budget_bytes": store.group.ranks * self._state.budget_bytes,
            "staging_bytes": store.path.staging_bytes,
            "peak_bytes": store.path.peak_bytes,
        }
