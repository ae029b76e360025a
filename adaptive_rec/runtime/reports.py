"""A run as it stands, in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from adaptive_rec.embedding.records import Fetched
from adaptive_rec.errors import TrainingError
from adaptive_rec.live.telemetry import Snapshot

if TYPE_CHECKING:
    from adaptive_rec.runtime.session import Session


class Reports:
    """Snapshots: the counters are taken when one is due, the loss is still on the device then. Nobody waits for it; the
    snapshot is made when it has come, a few steps later, and published."""

    def __init__(self, runtime: Session) -> None:
        self._runtime = runtime
        self._due: tuple[dict[str, float], dict[str, Any], Fetched] | None = None

    def begin(self) -> None:
        """Take down where the run stands. The snapshot before has to be finished."""
        assert self._due is None
        run = self._runtime
        counts = {**run.counts(), "seconds": run.recorder.seconds}
        self._due = counts, _state(run), run.losses()

    def finish(self, wait: bool) -> Iterator[Snapshot]:
        """Publish the snapshot that was begun, if it is complete or may be waited for. A loss that is no number ends the run."""
        if self._due is None or not (wait or self._due[2].is_here()):
            return
        (counts, state, loss_sum), self._due = self._due, None
        run = self._runtime
        snapshot = run.recorder.snapshot({**counts, "loss_sum": float(loss_sum.array())}, **state)
        run.mailbox.publish(snapshot)
        run.publisher.board()
        if run.ends_on_bad_loss and not math.isfinite(snapshot.loss):
            raise TrainingError(
                f"the loss must stay finite, got {snapshot.loss} by step {snapshot.step}; lower the learning rates"
            )
        yield snapshot


def _state(run: Session) -> dict[str, Any]:
    device = run.store.device
    return {
        "step": run.step_number,
        "steps_total": run.steps_total,
        "hot_rows": device.hot_rows,
        "stale_rows": device.stale_rows,
        "placement_version": run.store.placement.version,
        "stale_threshold": run.reclassifier.stale_threshold,
        "stage_seconds": {stage: round(seconds, 4) for stage, seconds in dict(run.times.seconds).items()},
        "tables": {
            "lookups": run.tally.lookups_T.tolist(),
            "lookups_hot": run.tally.hot_lookups_T.tolist(),
            "hot_rows": run.store.hot_rows_T.tolist(),
            "stale_rows": run.observer.stale_rows_T.tolist(),
        },
    }
