"""What a run does with its disk and with raw keys, from one report to the next."""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_rec.config.figures import PER_STEP, of_part
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.state.run_state import DISK, RunState


class DiskFigures:
    """Makes the part of a report that is about rows on a disk, of a run that has some there."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def start(self) -> None:
        """Count from here on, or from where a resumed run has counted."""
        if not self._state.disk_reported:
            self._state.report_disk(self._known(self._state.counts()))

    def report(self, counts: Mapping[str, float], interim: bool) -> dict[str, float]:
        """Return the figures of the steps since the last report that was due, by the counts of the run so far. `interim`:
        this one is not due."""
        store = self._state.store
        now, last = self._known(counts), self._state.disk_reported
        gain = {name: value - last.get(name, 0) for name, value in now.items()}
        if not interim:
            self._state.report_disk(now)
        steps = gain.pop("steps")
        per_step = {f"{name}{PER_STEP}": ratio(value, steps) for name, value in gain.items()}
        found = {**store.cold.total_sizes(), **per_step}
        return {figure.field: found[figure.field] for figure in of_part("disk")}

    def _known(self, counts: Mapping[str, float]) -> dict[str, float]:
        rows = {name.removeprefix(DISK): count for name, count in counts.items() if name.startswith(DISK)}
        return {"steps": counts["steps"], "wait_seconds": self._state.times.seconds["disk"], **rows}


class KeyFigures:
    """Makes the part of a report that is about raw keys."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def start(self) -> None:
        """Count from here on, or from where a resumed run has counted."""
        if not self._state.keys_reported:
            self._state.report_keys(self._now())

    def report(self, interim: bool) -> dict[str, float] | None:
        """Return the figures of the steps since the last report that was due; None where ids are rows. `interim`: this one is not
        due."""
        if self._state.input.keys is None:
            return None
        now, last = self._now(), self._state.keys_reported
        gain = {name: value - last[name] for name, value in now.items()}
        if not interim:
            self._state.report_keys(now)
        gain["admitted"] = gain["keys"] + gain["evicted"]
        per_step = {f"{name}{PER_STEP}": ratio(gain[name], gain["steps"]) for name in ("admitted", "refused")}
        found = {**now, **per_step, "shared_lookup_ratio": ratio(gain["lookups_shared"], gain["lookups"])}
        return {figure.field: found[figure.field] for figure in of_part("keys")}

    def _now(self) -> dict[str, int]:
        keys = self._state.input.keys
        return {} if keys is None else {"steps": self._state.step, **keys.counts()}
