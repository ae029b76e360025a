"""Reading of a run directory, complete or not, in one pass and in memory that does not grow with the run.

The files of a run that is under way, was killed or was resumed may be incomplete or repeat steps. Incomplete lines are counted
and left out; of steps that a resumed run repeated, the later ones count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptive_rec.offline.report.shapes import (
    ConfigFacts,
    FinalFigures,
    ReportEvaluation,
    ReportEvent,
    ReportLine,
    RunFacts,
    fitting,
    parsed_toml,
)
from adaptive_rec.run.directory import check_run
from adaptive_rec.run.journal import NAME as JOURNAL
from adaptive_rec.system.regular_files import bounded_lines, read_regular
from adaptive_rec.system.strict_json import LinesLeftOut, StrictShape, fits, parsed

MOST_POINTS = 300
"""Points of a line; at most twice as many are kept, a pixel or two each on a wide screen."""
MOST_EVENTS = 500
"""Events of one kind that are kept; further ones are only counted."""
HEAD_BYTES = 600
HEAD = re.compile(
    rb'\{"event": "snapshot", "step": (\d+),.{0,200}? "seconds": ([-+.\de]+),.{0,200}? "loss": ([-+.\de]+|null),'
)
"""The start of a report's line, which shows whether it is needed before all of it is parsed."""


@dataclass
class ReportStretch:
    """Thinned reports of one process: every `stride`-th one, the first and the last."""

    snapshots: list[Mapping[str, Any]] = field(default_factory=list)
    losses: list[tuple[float, float] | None] = field(default_factory=list)
    """Lowest and highest loss of the reports between the previous snapshot and each one."""
    began_at_step: int = 0


@dataclass
class RunRecord:
    """The contents of a run directory."""

    path: Path
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    """Contents of ``run.json``."""
    summary: Mapping[str, Any] | None
    stretches: list[ReportStretch]
    evaluations: list[Mapping[str, Any]]
    events: list[Mapping[str, Any]]
    event_counts: Mapping[str, int]
    reports: int
    stride: int
    """Reports per point."""
    faults: list[str]
    """Descriptions of what could not be read."""

    @property
    def scored(self) -> str:
        """Which samples evaluations score, in words."""
        before = (self.summary or {}).get("followed") or any("first_sample" in each for each in self.evaluations)
        return "before training on them" if before else "held out"


def read_run(run: Path) -> RunRecord:
    """Read a run directory. Raises UsageError for another directory."""
    check_run(run)
    faults: list[str] = []
    config = _read_object(run / "config.toml", ConfigFacts, faults, needed=True)
    about = _read_object(run / "run.json", RunFacts, faults, needed=True)
    summary = _read_object(run / "summary.json", FinalFigures, faults, needed=False) or None
    events, counts = _read_events(run / JOURNAL, faults)
    read = _read_metrics(run / "metrics.jsonl", faults)
    return RunRecord(
        run, config, about, summary, read.stretches, read.evaluations, events, counts, read.reports, read.stride, faults
    )


class _Metrics:
    """Reads ``metrics.jsonl`` line by line. When it has twice as many points as wanted, it drops every second one."""

    def __init__(self) -> None:
        self.stretches: list[ReportStretch] = []
        self.evaluations: list[Mapping[str, Any]] = []
        self.reports, self.stride = 0, 1
        self.left_out = LinesLeftOut()
        self._number = 0
        """That of the newest line."""
        self._step, self._seconds = 0, float("inf")
        self._low, self._high = float("inf"), float("-inf")
        self._pending: tuple[bytes, int] | None = None
        """The newest report and the number of its line, if it is not kept yet: the last one of a stretch will be."""
        self._tables: int | None = None
        """Number of tables, once known."""

    def take(self, line: bytes) -> None:
        self._number += 1
        if found := HEAD.match(line[:HEAD_BYTES]):
            try:
                seconds, loss = float(found[2]), None if found[3] == b"null" else float(found[3])
            except ValueError:
                self.left_out.add(self._number, len(line))
                return
            self._report(line, int(found[1]), seconds, loss)
        elif line.strip():
            values = parsed(line)
            if values is not None and values.get("event") == "evaluation" and fits(ReportEvaluation, values):
                while self.evaluations and self.evaluations[-1]["step"] >= values["step"]:
                    self.evaluations.pop()  # repeated after a resume
                self.evaluations.append(values)
            elif values is not None and values.get("event") == "rolled_back" and isinstance(values.get("step"), int):
                self._go_back(values["step"])
            else:
                self.left_out.add(self._number, len(line))

    def _go_back(self, step: int) -> None:
        """Leave out what came after a step, to which the run went back."""
        self.end_stretch()
        self._drop_from(step)
        while self.evaluations and self.evaluations[-1]["step"] > step:
            self.evaluations.pop()
        self._step, self._seconds = step, float("inf")

    def end_stretch(self) -> None:
        """Keep the newest report."""
        if self._pending is not None:
            self._keep(*self._pending)

    def _report(self, line: bytes, step: int, seconds: float, loss: float | None) -> None:
        begins = seconds < self._seconds or step <= self._step
        if begins:
            self.end_stretch()
        self._step, self._seconds = step, seconds
        if loss is not None:
            self._low, self._high = min(self._low, loss), max(self._high, loss)
        if begins or self.reports % self.stride == 0:
            self._keep(line, self._number, begins)
        else:
            self._pending = line, self._number
        self.reports += 1

    def _keep(self, line: bytes, number: int, begins: bool = False) -> None:
        values = parsed(line)
        self._pending = None
        if values is None or not self._is_report(values):
            self.left_out.add(number, len(line))
            return
        if begins or not self.stretches:
            self._begin(values)
        stretch = self.stretches[-1]
        stretch.snapshots.append(values)
        stretch.losses.append((self._low, self._high) if self._low <= self._high else None)
        self._low, self._high = float("inf"), float("-inf")
        if sum(len(each.snapshots) for each in self.stretches) > 2 * MOST_POINTS:
            self._thin()

    def _is_report(self, values: dict[str, Any]) -> bool:
        """Return whether a line has all that plots need, and as many tables as the others."""
        if not fits(ReportLine, values):
            return False
        tables = len(values["tables"]["lookups"])
        if self._tables is None:
            self._tables = tables
        return tables == self._tables

    def _begin(self, first: Mapping[str, Any]) -> None:
        """Start the reports of another process, which replace those of an earlier one beyond its start.

        Its counters continue from the step where it was resumed; in runs of old versions they start at zero.
        """
        start = int(first["step"] - first["totals"].get("steps", first["step"]))
        if self.stretches and self.stretches[-1].began_at_step == start:
            self._drop_from(int(first["step"]) - 1)
            if self.stretches:
                return
        self._drop_from(start)
        self.stretches.append(ReportStretch(began_at_step=start))

    def _drop_from(self, start: int) -> None:
        for stretch in self.stretches:
            kept = sum(snapshot["step"] <= start for snapshot in stretch.snapshots)
            del stretch.snapshots[kept:], stretch.losses[kept:]
        self.stretches = [stretch for stretch in self.stretches if stretch.snapshots]

    def _thin(self) -> None:
        self.stride *= 2
        for stretch in self.stretches:
            thinned = ReportStretch(began_at_step=stretch.began_at_step)
            held: tuple[float, float] | None = None
            for place, (snapshot, loss) in enumerate(zip(stretch.snapshots, stretch.losses, strict=True)):
                held = _span(held, loss)
                if place % 2 or place == 0 or place == len(stretch.snapshots) - 1:
                    thinned.snapshots.append(snapshot)
                    thinned.losses.append(held)
                    held = None
            stretch.snapshots, stretch.losses = thinned.snapshots, thinned.losses


def _span(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _read_metrics(path: Path, faults: list[str]) -> _Metrics:
    metrics = _Metrics()
    for line in _lines(path, metrics.left_out):
        metrics.take(line)
    metrics.end_stretch()
    _report_left_out(metrics.left_out, path, faults)
    return metrics


def _report_left_out(lines: LinesLeftOut, path: Path, faults: list[str]) -> None:
    if lines.count:
        faults.append(f"{path.name}: {lines}")


def _read_events(path: Path, faults: list[str]) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
    events: list[Mapping[str, Any]] = []
    counts: dict[str, int] = {}
    left_out = LinesLeftOut()
    for number, line in enumerate(_lines(path, left_out), start=1):
        event = parsed(line)
        if event is None or not fits(ReportEvent, event):
            if line.strip():
                left_out.add(number, len(line))
            continue
        kind = str(event["kind"])
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= MOST_EVENTS:
            events.append({"time": None, "details": {}, **event})
    _report_left_out(left_out, path, faults)
    return events, counts


def _lines(path: Path, left_out: LinesLeftOut) -> Iterator[bytes]:
    """Yield the lines of a file, an incomplete last one included, until too many of them are `left_out` by the reader; none where
    the file is missing."""
    if path.is_file():
        with open(path, "rb") as file:
            for number, (line, _) in enumerate(bounded_lines(file), start=1):
                if left_out.gives_up(number):
                    return
                yield line


def _read_object(path: Path, shape: type[StrictShape], faults: list[str], needed: bool) -> dict[str, Any]:
    """Return what a file holds, without values that do not fit."""
    if not path.exists():
        if needed:
            faults.append(f"{path.name} is missing")
        return {}
    try:
        data = read_regular(path)
    except OSError as error:
        faults.append(f"{path.name} cannot be read: {error.strerror}")
        return {}
    values = parsed_toml(data) if path.suffix == ".toml" else parsed(data)
    if values is None:
        faults.append(f"{path.name} cannot be read")
        return {}
    kept, wrong = fitting(shape, values)
    faults += [f"{path.name} has a value that is left out: {each}" for each in wrong]
    return kept
