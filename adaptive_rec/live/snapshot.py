"""A run as it stands, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaptive_rec.telemetry import Snapshot

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime


def take_snapshot(run: Runtime) -> Snapshot:
    """Everything a report holds; ratios are over the steps since the one before."""
    device = run.store.device
    return run.recorder.snapshot(
        run.totals(),
        step=run.step_number,
        steps_total=run.steps_total,
        hot_rows=device.hot_rows,
        stale_rows=device.stale_rows,
        placement_version=run.store.placement.version,
        stale_threshold=run.reclassifier.stale_threshold,
        stage_seconds={stage: round(seconds, 4) for stage, seconds in dict(run.times.seconds).items()},
        tables={
            "lookups": run.lookups_T.tolist(),
            "lookups_hot": run.hot_lookups_T.tolist(),
            "hot_rows": run.store.hot_rows_T.tolist(),
            "stale_rows": run.observer.stale_rows_T.tolist(),
        },
    )
