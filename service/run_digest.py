"""What the list of runs says of a run, read from its directory a part at a time."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from adaptive_rec.config.metrics import ranked_of
from adaptive_rec.live.life import is_held, state_of
from adaptive_rec.service.damage import summary_of
from adaptive_rec.service.hello import Count, Values
from adaptive_rec.service.lines import (
    EvaluationLine,
    EventLine,
    Name,
    RolledBackLine,
    SnapshotLine,
    Step,
    was_replaced,
)
from adaptive_rec.service.table_history import ThinnedSeries
from adaptive_rec.system.regular_files import open_regular
from adaptive_rec.system.strict_json import StrictShape, fits, parsed

PART_BYTES = 16 << 20
"""Most that is read of a file at one look; the next look goes on from there."""
ABOUT_BYTES = 8 << 20
"""Longest `run.json` that is read."""
REPORT = re.compile(rb'\{"event": ?"(snapshot|evaluation|rolled_back)", ?"step": ?([0-9]{1,16})\b')
SHAPES: dict[bytes, type[StrictShape]] = {b"snapshot": SnapshotLine, b"rolled_back": RolledBackLine}


class DigestParent(StrictShape):
    """Where a run was branched from, as `run.json` has it."""

    run: str
    checkpoint: Name
    step: Step


class TableName(StrictShape):
    name: str


class StartedKnobs(StrictShape):
    policy: Name = ""


class AboutRun(StrictShape):
    """The part of `run.json` that the list shows."""

    started: float = 0.0
    effective: StartedKnobs = StartedKnobs()
    steps_per_epoch: Count | None = None
    parent: DigestParent | None = None
    tables: list[TableName] = []


class GrowingFile:
    """The lines of a file that others append to, read a part at a time. The file may be missing; links are not followed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._position = 0
        self.complete = False
        """Whether the last look came to the end of the file."""

    def was_replaced(self) -> bool:
        return was_replaced(self._path, self._inode, self._position)

    def new_lines(self, most_bytes: int) -> list[bytes]:
        """Return the whole lines since the last look, in at most so many bytes. A longer line is left out."""
        try:
            file = open_regular(self._path, links=False)
        except OSError:
            self.complete = True
            return []
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._position)
            part = file.read(most_bytes)
        self.complete = len(part) < most_bytes
        end = part.rfind(b"\n") + 1
        self._position += end if end or self.complete else len(part)
        return part[:end].split(b"\n")[:-1]


class RunDigest:
    """State, step and quality of the run in a directory. `look` reads what was added since."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._about: tuple[tuple[int, ...], AboutRun] = ((), AboutRun())
        self._metrics, self._journal = GrowingFile(run / "metrics.jsonl"), GrowingFile(run / "events.jsonl")
        self._evaluations = ThinnedSeries()
        self._newest: Values = {}
        self._step = -1
        self._last: Values = {}
        """By kind, the last event of the journal since the run was last started."""
        self._has_spoilt_events = False

    @property
    def about(self) -> AboutRun:
        """The run's description, read again where it was replaced. One that cannot be read has no values."""
        path = self.run / "run.json"
        with suppress(OSError):
            found = os.lstat(path)
            key = (found.st_ino, found.st_mtime_ns, found.st_size)
            if key != self._about[0]:
                self._about = (key, read_about(path))
        return self._about[1]

    def was_replaced(self) -> bool:
        """Return whether the directory is that of another run now."""
        return self._metrics.was_replaced() or self._journal.was_replaced()

    def look(self, most_bytes: int) -> int:
        """Read what was added to the files, at most so many bytes of each. Return about how many bytes that were."""
        metrics, journal = self._metrics.new_lines(most_bytes), self._journal.new_lines(most_bytes)
        self._take_metrics(metrics)
        self._take_events(journal)
        return sum(map(len, metrics)) + sum(map(len, journal))

    def _take_metrics(self, lines: list[bytes]) -> None:
        newest: list[tuple[int, bytes]] = []
        """Step and text of the snapshots since the run last went back, whole or not."""
        for line in lines:
            if found := REPORT.match(line):
                step = int(found[2])
                if found[1] == b"evaluation":
                    self._evaluate(line)
                elif found[1] == b"snapshot" and step > (newest[-1][0] if newest else self._step):
                    newest.append((step, line))  # it is read only where it is the last one
                elif (values := parsed(line)) is not None and fits(SHAPES[found[1]], values):
                    self._evaluations.cut(step)
                    self._step, newest = step, [(step, line)] if found[1] == b"snapshot" else []
        for step, line in reversed(newest):
            if (snapshot := parsed(line)) is not None and fits(SnapshotLine, snapshot):
                self._step, self._newest = step, snapshot
                break

    def _take_events(self, lines: list[bytes]) -> None:
        for line in lines:
            if (event := parsed(line)) is not None and fits(EventLine, event):
                if event["kind"] == "started":
                    self._last = {}
                self._last.pop(event["kind"], None)  # the last one stands behind the others
                self._last[event["kind"]] = event
            elif line.strip():
                self._has_spoilt_events = True

    def _evaluate(self, line: bytes) -> None:
        evaluation = parsed(line)
        if evaluation is not None and fits(EvaluationLine, evaluation):
            self._evaluations.add(at_a_glance(evaluation))

    def described(self) -> Values:
        """Return the run's line of the list."""
        about, points = self.about, self._evaluations.points
        known = [point for point in points if point["auc"] is not None]
        newest_event = next(reversed(self._last.values()), {"step": 0})  # earlier ones may be of steps that were taken back
        parent = about.parent
        return {
            "name": self.run.name,
            "own": False,
            "policy": about.effective.policy,
            "state": self.state(),
            "step": max(self._step, newest_event["step"], 0),
            "steps_total": self._newest.get("steps_total"),
            "steps_per_epoch": about.steps_per_epoch,
            "seconds": self._newest.get("seconds", 0.0),
            "loss": self._newest.get("loss"),
            "best": max(known, key=lambda point: (point["auc"], -point["step"]), default=None),
            "last": points[-1] if points else None,
            "started": iso(about.started),
            "parent": parent
            and {"run": PurePath(parent.run).name, "checkpoint": parent.checkpoint, "step": parent.step},
            "tables": [table.name for table in about.tables],
            "complete": self._metrics.complete and self._journal.complete,
        }

    def state(self) -> str:
        """Return how the run ended, or what it does: its directory is locked while a process trains in it."""
        silent = not self._last and not self._has_spoilt_events
        return state_of(
            self._last, is_held(self.run), lambda: silent and summary_of(self.run, links=False) is not None
        )


def at_a_glance(evaluation: Values) -> Values:
    """Return what the list shows of an evaluation."""
    return {**{name: evaluation.get(name) for name in ("step", "auc", "logloss")}, "metrics": ranked_of(evaluation)}


def read_about(path: Path) -> AboutRun:
    """Return the description of a run; without values where the file is missing, damaged, too long or a link."""
    try:
        with open_regular(path, links=False) as file:
            values: Any = parsed(file.read(ABOUT_BYTES))
        return AboutRun.model_validate(values)
    except (OSError, ValidationError):
        return AboutRun()


def iso(seconds: float) -> str | None:
    """Return a time since the epoch as ISO 8601, UTC; None where it is not known."""
    with suppress(ValueError, OverflowError, OSError):
        if seconds > 0:
            return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return None
