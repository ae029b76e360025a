"""A run's directory: one process writes it; files that are replaced are replaced whole."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from adaptive_rec.config.tree import Config, to_toml
from adaptive_rec.errors import UsageError
from adaptive_rec.live.telemetry import Evaluation, Event, Snapshot, to_json
from adaptive_rec.run import journal
from adaptive_rec.run.line_file import LineFile
from adaptive_rec.system.durable import write_whole


def sole_writer(out: Path) -> IO[str] | None:
    """Lock an existing run directory for this process until the returned file is closed. Raises UsageError where another process
    holds it."""
    if not out.is_dir():
        return None
    lock = open(out / ".lock", "a", encoding="utf-8")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UsageError(f"--out {out} must be of one process at a time, another one trains there") from None
    return lock


def check_is_new(out: Path, option: str = "--out", hint: str = "; give another or add --resume") -> None:
    """Raise UsageError where a new run's directory holds something already."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise UsageError(f"{option} must be a new directory, {out} exists{hint}")


def new_directory(policy: str) -> Path:
    """``runs/TIME-POLICY``, with a number behind it where that is taken."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{policy.rpartition(':')[2]}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1 << 30))
    return next(path for path in numbered if not path.exists())


def replace_text(path: Path, text: str) -> None:
    """Replace a file, whole or not at all; one that has this text stays as it is."""
    if path.exists() and path.read_bytes() == text.encode():
        return
    write_whole(path, text)


class RunDirectory:
    """A run's directory, written by this process alone: ``config.toml``, ``run.json``, the journal and the metrics."""

    def __init__(self, path: Path, exists: bool = False) -> None:
        """`exists`: the run is resumed; the directory is locked at once. Raises UsageError where another process holds it."""
        self.path = path
        self._lock = sole_writer(path) if exists else None
        self._journal, self._metrics = LineFile(path / journal.NAME), LineFile(path / "metrics.jsonl")

    def create(self, config: Config, facts: Mapping[str, Any], option: str = "--out") -> None:
        """Make the directory, lock it, and write what does not change while the run trains. Raises UsageError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock or sole_writer(self.path)
            replace_text(self.path / "config.toml", to_toml(config))
            replace_text(self.path / "run.json", to_json(facts, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"{option} {self.path} cannot be written: {error.strerror}") from None

    def append(self, report: Event | Snapshot | Evaluation, seconds: float = 0.0, samples_seen: int = 0) -> None:
        """Append an event to the journal, or figures to the metrics. An evaluation is stamped with the run's
        `seconds` and `samples_seen`. Lines wait in memory while the disk has no room for them."""
        if isinstance(report, Event):
            self._journal.append(journal.line_of(report))
        elif isinstance(report, Evaluation):
            at = {"step": report.step, "seconds": seconds, "samples_seen": samples_seen}
            self._metrics.append(to_json({"event": "evaluation", **at, **asdict(report.quality)}))
        else:
            self._metrics.append(to_json({"event": "snapshot", **report.as_dict()}))

    def complaints(self) -> list[str]:
        """Warnings about lines that wait, or were written after all, that were not returned before."""
        return [text for text in (self._journal.complaint(), self._metrics.complaint()) if text]

    def close(self) -> None:
        """Leave the directory to other processes."""
        if self._lock is not None:
            self._lock.close()
