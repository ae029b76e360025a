"""What the run has done so far, read from its files and kept in bounded memory: curves, evaluations, events."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adaptive_rec.service.lines import EvaluationLine, EventLine, KnobsLine, SnapshotLine, fits
from adaptive_rec.service.tail import Tail

POINTS_KEPT = 4096
WHOLE_BYTES = 16 << 20
"""Of metrics that are longer when the sidecar starts, it reads a sample: the start must not take seconds."""
EVENTS_KEPT = 4096

TRAFFIC = ("host_to_device_bytes", "device_to_host_bytes")
"""Columns that stand in a snapshot's totals."""
COLUMNS = (
    "step",
    "seconds",
    "samples_per_second",
    "loss",
    "hot_lookup_ratio",
    "popular_sample_ratio",
    "skipped_sample_ratio",
    "skipped_row_update_ratio",
    "hot_rows",
    "stale_rows",
    "stale_threshold",
    *TRAFFIC,
)
Point = dict[str, Any]


class ThinnedSeries:
    """Points in the order of their steps, thinned evenly when they grow too many, so that they always cover the whole run."""

    def __init__(self, limit: int = POINTS_KEPT) -> None:
        self.points: list[Point] = []
        self.limit = limit
        self.spacing = 1
        """Steps between two points, at least. The newest point is there in any case."""

    def add(self, point: Point) -> None:
        while self.points and self.points[-1]["step"] >= point["step"]:
            self.points.pop()  # a resumed run goes over these steps again
        if len(self.points) > 1 and self.points[-1]["step"] - self.points[-2]["step"] < self.spacing:
            self.points.pop()  # it stood there as the newest only
        self.points.append(point)
        if len(self.points) > self.limit:
            span = self.points[-1]["step"] - self.points[0]["step"]
            self.spacing = max(2 * self.spacing, -(-2 * span // self.limit))
            self.points = spaced(self.points, self.spacing)

    def since(self, step: int, spacing: int) -> list[Point]:
        """The points after a step, at least `spacing` steps apart, the newest among them."""
        return spaced([point for point in self.points if point["step"] > step], spacing)


def spaced(points: list[Point], spacing: int) -> list[Point]:
    """Points at least `spacing` steps apart, and the last one."""
    kept: list[Point] = []
    for point in points:
        if not kept or point["step"] - kept[-1]["step"] >= spacing:
            kept.append(point)
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


class MetricHistory:
    """A run's `metrics.jsonl`."""

    def __init__(self, run: Path) -> None:
        self._tail = Tail(run / "metrics.jsonl", WHOLE_BYTES)
        self.snapshots = ThinnedSeries()
        self.evaluations = ThinnedSeries()
        self.newest: dict[str, Any] | None = None
        """The newest snapshot, whole."""

    def refresh(self) -> None:
        """Take in what was written since. Costs a look at the file's size where that is nothing."""
        for line in self._tail.new_lines():
            kind = line.pop("event", None)
            if kind == "snapshot" and fits(SnapshotLine, line):
                self.newest = line
                totals = line.get("totals", {})
                self.snapshots.add({name: (totals if name in TRAFFIC else line).get(name) for name in COLUMNS})
            elif kind == "evaluation" and fits(EvaluationLine, line):
                self.evaluations.add(line)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        return self.evaluations.points[-1] if self.evaluations.points else None

    def steps_per_second(self, over: int = 10) -> float | None:
        """Pace over the last few snapshots; None while there are fewer than two of this start of the run."""
        recent = self.snapshots.points[-over:]
        for first in recent:
            if first["step"] < recent[-1]["step"] and first["seconds"] < recent[-1]["seconds"]:
                steps, seconds = (recent[-1][key] - first[key] for key in ("step", "seconds"))
                return float(steps / seconds)
        return None


class EventLog:
    """A run's `events.jsonl`. An event's id is its place among the file's events, from 1 on, so it outlives the sidecar."""

    def __init__(self, run: Path, limit: int = EVENTS_KEPT) -> None:
        self._tail = Tail(run / "events.jsonl")
        self.events: deque[dict[str, Any]] = deque(maxlen=limit)
        self.last_id = 0
        self.knobs: dict[str, Any] = {}
        """Every knob that was changed since the run was last started, with its last value."""
        self.knobs_step = 0
        self.counts: dict[str, int] = {}

    def refresh(self) -> None:
        for line in self._tail.new_lines():
            if fits(KnobsLine if line.get("kind") == "knobs" else EventLine, line):
                self._add(line)

    def _add(self, line: dict[str, Any]) -> None:
        self.last_id += 1
        event: dict[str, Any] = {
            "id": self.last_id,
            "time": datetime.fromtimestamp(line["time"], UTC).isoformat(timespec="milliseconds"),
            **{key: line[key] for key in ("step", "kind", "text")},
            "details": line.get("details", {}),
        }
        self.events.append(event)
        self.counts[event["kind"]] = self.counts.get(event["kind"], 0) + 1
        if event["kind"] == "started":
            self.knobs, self.knobs_step = {}, event["step"]
        if event["kind"] == "knobs":
            self.knobs.update({name: change["new"] for name, change in event["details"]["changed"].items()})
            self.knobs_step = event["step"]

    def page(self, since: int | None, limit: int, kind: str | None) -> tuple[list[dict[str, Any]], int]:
        """Events, oldest first, and the id after which the next page begins. Without `since`, the newest ones."""
        found = [e for e in self.events if (since is None or e["id"] > since) and (kind is None or e["kind"] == kind)]
        if since is None:
            return found[-limit:], self.last_id
        cut = len(found) > limit
        return found[:limit], found[limit - 1]["id"] if cut else self.last_id
