"""What a run does with its disk, from one report to the next."""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_rec.config.figures import PER_STEP, of_part
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.state.run_state import DISK, RunState


class DiskFigures:
    """Makes the part of a report that is about rows on a disk, of a run that has some there."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._last: dict[str, float] = {}

    def start(self) -> None:
        """Count from here on: a resumed run has counts of earlier processes."""
        self._last = self._known(self._state.counts())

    def report(self, counts: Mapping[str, float], interim: bool) -> dict[str, float]:
        """Return the figures of the steps since the last report that was due, by the counts of the run so far. `interim`:
        this one is not due."""
        store = self._state.store
        now = self._known(counts)
        gain = {name: value - self._last[name] for name, value in now.items()}
        if not interim:
            self._last = now
        steps = gain.pop("steps")
        per_step = {f"{name}{PER_STEP}": ratio(value, steps) for name, value in gain.items()}
        found = {**store.cold.total_sizes(), **per_step}
        return {figure.field: found[figure.field] for figure in of_part("disk")}

    def _known(self, counts: Mapping[str, float]) -> dict[str, float]:
        rows = {name.removeprefix(DISK): count for name, count in counts.items() if name.startswith(DISK)}
        return {"steps": counts["steps"], "wait_seconds": self._state.times.seconds["disk"], **rows}
