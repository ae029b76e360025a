"""Curves, evaluations and events of a run, read from its files and kept in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adaptive_rec.live.life import ENDS, after
from adaptive_rec.service.lines import (
    EvaluationLine,
    EventLine,
    KnobsLine,
    OverfitDetails,
    RolledBackLine,
    SnapshotLine,
    Tail,
)
from adaptive_rec.service.table_history import Point, TableHistory, ThinnedSeries
from adaptive_rec.system.strict_json import fits

WHOLE_BYTES = 16 << 20
"""If the metrics file is longer at the start, the sidecar reads a sample, so that the start does not take seconds."""
EVENTS_KEPT = 4096
SAVED_KEPT = 1024
"""Checkpoints of which the end in the journal is known: a run goes on from one of its newest."""

TRAFFIC = ("host_to_device_bytes", "device_to_host_bytes")
"""Columns from a snapshot's totals."""
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
    "stale_agreement",
    "dense_lr",
    "embedding_lr",
    *TRAFFIC,
)


class MetricHistory:
    """The content of a run's `metrics.jsonl`. Steps that a run made again after it went back replace the earlier ones."""

    def __init__(self, run: Path, tables: int = 0, links: bool = True) -> None:
        """`tables`: number of the run's tables. Unless `links`, a file that is a link is not read."""
        self.tail = Tail(run / "metrics.jsonl", WHOLE_BYTES, links)
        self.snapshots = ThinnedSeries()
        self.evaluations = ThinnedSeries()
        self.tables = TableHistory(tables)
        self.newest: dict[str, Any] | None = None
        """The newest snapshot, whole."""

    def was_replaced(self) -> bool:
        """Return whether the file is that of another run now."""
        return self.tail.was_replaced()

    def refresh(self) -> None:
        """Read the lines written since the last call. If there are none, this only reads the file's size."""
        for line in self.tail.new_lines():
            kind = line.pop("event", None)
            if kind == "snapshot" and fits(SnapshotLine, line):
                if self.newest is not None and line["step"] <= self.newest["step"]:
                    self.evaluations.cut(line["step"])
                self.newest = line
                self.tables.add(line)
                totals = line.get("totals", {})
                self.snapshots.add({name: (totals if name in TRAFFIC else line).get(name) for name in COLUMNS})
            elif kind == "evaluation" and fits(EvaluationLine, line):
                self.evaluations.add(line)
            elif kind == "rolled_back" and fits(RolledBackLine, line):
                self.newest = None
                for series in (self.snapshots, self.evaluations, self.tables):
                    series.cut(line["step"])
            else:
                self.tail.leave_out()

    @property
    def evaluation(self) -> Point | None:
        return self.evaluations.points[-1] if self.evaluations.points else None

    @property
    def best_evaluation(self) -> Point | None:
        """The evaluation of the greatest AUC, the first of equal ones."""
        known = [point for point in self.evaluations.points if point.get("auc") is not None]
        return max(known, key=lambda point: point["auc"], default=None)

    def overfit_since(self, event: Point | None) -> Point | None:
        """Return the details of an event `overfit` if no later evaluation had less logloss than the least one then."""
        if event is None or not fits(OverfitDetails, event["details"]):
            return None
        found: Point = event["details"]
        later = [point.get("logloss") for point in self.evaluations.points if point["step"] > event["step"]]
        return None if any(loss is not None and loss < found["least_logloss"] for loss in later) else found

    def steps_per_second(self, over: int = 10) -> float | None:
        """Return the steps per second over the last `over` snapshots; None if this start of the run has fewer than two."""
        recent = self.snapshots.points[-over:]
        for first in recent:
            if first["step"] < recent[-1]["step"] and first["seconds"] < recent[-1]["seconds"]:
                steps, seconds = (recent[-1][key] - first[key] for key in ("step", "seconds"))
                return float(steps / seconds)
        return None


class EventLog:
    """The content of a run's `events.jsonl`. An event's id is its number in the file, from 1, and so outlives the sidecar."""

    def __init__(self, run: Path, limit: int = EVENTS_KEPT) -> None:
        self.tail = Tail(run / "events.jsonl")
        self.events: deque[dict[str, Any]] = deque(maxlen=limit)
        self.last_id = 0
        self.knobs: dict[str, Any] = {}
        """The knobs changed since the last start of the run, with their last values; all of them once it went back."""
        self.changes: deque[dict[str, Any]] = deque(maxlen=limit)
        """The changes of knobs in the course of the run, oldest first. Those that a resumed run lost are left out."""
        self._saved: dict[str, int] = {}
        """By checkpoint, the last event that it includes."""
        self.knobs_step = 0
        self.counts: dict[str, int] = {}
        self.watchdog_counts: dict[str, int] = {}
        """Broken rules of the watchdog, by what was done."""
        self.state = "starting"
        """The state of the run to which the events lead; see `adaptive_rec.live.life`."""
        self.end: dict[str, Any] | None = None
        """The event `finished` or `failed` with which the last start of the run ended, if it did."""
        self.overfit: dict[str, Any] | None = None
        """The last event `overfit` in the course of the run."""

    def refresh(self) -> None:
        for line in self.tail.new_lines():
            if fits(KnobsLine if line.get("kind") == "knobs" else EventLine, line):
                self._add(line)
            else:
                self.tail.leave_out()

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
        self.state = after(self.state, event["kind"])
        if event["kind"] == "watchdog":
            action = str(event["details"].get("action"))
            self.watchdog_counts[action] = self.watchdog_counts.get(action, 0) + 1
        checkpoint = event["details"].get("checkpoint")
        if event["kind"] == "started":
            self.knobs, self.knobs_step, self.end = {}, event["step"], None
            self._go_back(checkpoint)
        elif event["kind"] == "rolled_back":
            self._go_back(checkpoint)
            saved = event["details"].get("knobs")
            if isinstance(saved, dict):  # those of the checkpoint
                self.knobs = {name: value for name, value in saved.items() if isinstance(value, int | float | str)}
            self.knobs_step = event["step"]
        elif event["kind"] == "checkpoint_failed":
            self._saved.pop(str(checkpoint), None)
        elif event["kind"] == "saving" or (event["kind"] == "checkpoint" and str(checkpoint) not in self._saved):
            self._saved.pop(str(checkpoint), None)
            self._saved[str(checkpoint)] = self.last_id
            if len(self._saved) > SAVED_KEPT:
                del self._saved[next(iter(self._saved))]
        if event["kind"] in ENDS:
            self.end = event
        if event["kind"] == "overfit":
            self.overfit = event
        if event["kind"] == "knobs":
            self.knobs.update({name: change["new"] for name, change in event["details"]["changed"].items()})
            self.knobs_step = event["step"]
            if event["details"].get("undoes") == 0:
                self._name_undone(event)
            self.changes.append(event)

    def changes_in_effect(self, pending: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the changes of knobs that are no undo and were not undone, oldest first. `pending`: those not in effect yet.

        The change that an undo has reversed is found by its values: the numbers of events in a replay are others.
        """
        left: list[dict[str, Any]] = []
        for event in (*self.changes, *pending):
            if "undoes" not in event["details"]:
                left.append(event)
                continue
            back = {name: (each["new"], each.get("old")) for name, each in event["details"]["changed"].items()}
            for number, each in reversed(list(enumerate(left))):
                if back == {name: (one.get("old"), one["new"]) for name, one in each["details"]["changed"].items()}:
                    del left[number]
                    break
        return left

    def _name_undone(self, event: dict[str, Any]) -> None:
        """Set the number of the change that an undo has reversed which was sent before that change was in the journal."""
        before = [each["id"] for each in self.changes_in_effect()]
        left = {each["id"] for each in self.changes_in_effect([event])}
        event["details"] |= {"undoes": next((number for number in before if number not in left), 0)}

    def _go_back(self, checkpoint: Any) -> None:
        """Leave out what a run lost that has started again, from a checkpoint or from its beginning, or went back to one."""
        last = 0 if checkpoint is None else self._saved.get(str(checkpoint), self.last_id)
        self.changes = deque((each for each in self.changes if each["id"] <= last), self.changes.maxlen)
        self._saved = {name: number for name, number in self._saved.items() if number <= last}
        if self.overfit is not None and self.overfit["id"] > last:
            self.overfit = None

    def page(self, since: int | None, limit: int, kind: str | None) -> tuple[list[dict[str, Any]], int]:
        """Return events, oldest first, and the `since` of the next page. Without `since`, return the newest events."""
        found = [e for e in self.events if (since is None or e["id"] > since) and (kind is None or e["kind"] == kind)]
        if since is None:
            return found[-limit:], self.last_id
        cut = len(found) > limit
        return found[:limit], found[limit - 1]["id"] if cut else self.last_id
