"""Keeps the shared state of a run up to date: a pulse at every step, the board at every report, the placement at every window."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.live.telemetry import finite
from adaptive_rec.reclassify.observer import SKETCH_LIMIT_BYTES
from adaptive_rec.system.systemd import Systemd
from adaptive_rec.tracking.count_min import UNIT, CountMinSketch

if TYPE_CHECKING:
    from adaptive_rec.runtime.session import Session


class Publisher:
    """Without a writer (nobody is to look) it does nothing."""

    def __init__(self, runtime: Session) -> None:
        self._runtime = runtime
        self.writer: StateWriter | None = None
        self._placement: dict[str, Any] = {}
        self._systemd = Systemd()

    def open(self) -> StateWriter:
        """Begin to publish, with what there is to show now."""
        space = self._runtime.store.space
        self.writer = StateWriter([pool.rows for pool in space.pools], SKETCH_LIMIT_BYTES // 4, len(space.tables))
        self.placement()
        return self.writer

    def close(self) -> None:
        """Publish no more."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def pulse(self) -> None:
        """A step is done, or the run is paused and well."""
        self._systemd.alive()
        if self.writer is not None:
            self.writer.pulse(self._runtime.step_number)

    def board(self) -> None:
        """The small things: phase, knobs, newest snapshot and evaluation."""
        if self.writer is None:
            return
        run = self._runtime
        snapshot, evaluation = run.mailbox.newest, run.last_evaluation
        self.writer.write_board(
            finite(
                {
                    "phase": run.phase,
                    "step": run.step_number,
                    "steps_total": run.steps_total,
                    "snapshot": snapshot.as_dict() if snapshot else None,
                    "evaluation": {"step": evaluation.step, **asdict(evaluation.quality)} if evaluation else None,
                    "knobs": run.knobs.model_dump(),
                    "knobs_step": run.knobs_step,
                    "placement": {**self._placement, **self._memory()},
                    "checkpoint": run.saving.newest if run.saving else None,
                    "checkpoints": {
                        "failed": run.saving.failed if run.saving else 0,
                        "stall_seconds": run.saving.stall_seconds if run.saving else 0.0,
                    },
                }
            )
        )
        self.writer.pulse(run.step_number)

    def placement(self) -> None:
        """Where the rows are, how popular they were, how far they moved; counts of them go to the board."""
        if self.writer is None:
            return
        store, counter = self._runtime.store, self._runtime.observer.tracker.counter
        tiers = [
            Tier(rows, stale, estimate, movement)
            for rows, stale, estimate, movement in zip(
                store.device.row_of_slot, store.device.stale, store.device.estimate, store.device.movement, strict=True
            )
        ]
        sketch = (counter.counters, counter.seeds, UNIT) if isinstance(counter, CountMinSketch) else None
        slot_of_row = store.placement.slot_of_row
        self.writer.write_placement(self._runtime.step_number, store.placement.version, slot_of_row, tiers, sketch)
        self._placement = self._counts()
        self.board()

    def _counts(self) -> dict[str, Any]:
        run, store = self._runtime, self._runtime.store
        pools = [store.space.table_range(table)[0] for table in range(len(store.space.tables))]
        return {
            "version": store.placement.version,
            "step": run.step_number,
            "hot_rows": store.hot_rows_T.tolist(),
            "stale_rows": run.observer.stale_rows_T.tolist(),
            "row_bytes": [store.row_bytes[pool] for pool in pools],
            "device_bytes": store.device_bytes,
        }

    def _memory(self) -> dict[str, int]:
        """What changes between two windows too: the budget with the knobs, staging and peak with every batch."""
        run, store = self._runtime, self._runtime.store
        return {
            "budget_bytes": run.policy.budget_bytes(run.knobs, all_rows_bytes(store.space, store.row_bytes)),
            "staging_bytes": store.staging_bytes,
            "peak_bytes": store.peak_bytes,
        }
