"""A run's directory: one process writes it; files that are replaced are replaced whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config, to_toml
from adaptive_rec.errors import UsageError
from adaptive_rec.live.recorder import NO_TIME, LoopTime
from adaptive_rec.live.telemetry import Evaluation, Event, Snapshot, to_json
from adaptive_rec.run import journal
from adaptive_rec.run.external_paths import outside, sign, with_absolute_rows
from adaptive_rec.run.line_file import LineFile
from adaptive_rec.run.new_directory import claim, leave, replace_text, sole_writer


class RunDirectory:
    """A run's directory, written by this process alone: ``config.toml``, ``run.json``, the journal and the metrics."""

    def __init__(self, path: Path, exists: bool = False) -> None:
        """Lock the directory, which is made unless it `exists`: the run is resumed. Raises UsageError where another process holds
        it, or has made a run there."""
        self.path = path
        found = sole_writer(path) if exists else None
        self._lock, self._is_new = found or claim(path), found is None
        self._journal, self._metrics = LineFile(path / journal.NAME), LineFile(path / "metrics.jsonl")

    def create(self, config: Config, facts: Mapping[str, Any], option: str = "--out") -> None:
        """Write what does not change while the run trains. Raises UsageError."""
        try:
            replace_text(self.path / "config.toml", to_toml(with_absolute_rows(config)))
            replace_text(self.path / "run.json", to_json(facts, indent=1) + "\n")
            sign(self.path, rows=outside(self.path, config))
        except OSError as error:
            raise UsageError(f"{option} {self.path} cannot be written: {error.strerror}") from None

    def append(self, report: Event | Snapshot | Evaluation, took: LoopTime = NO_TIME) -> None:
        """Append an event to the journal, or figures to the metrics. An evaluation is stamped with what the
        loop `took`. Lines wait in memory while the disk has no room for them."""
        if isinstance(report, Event):
            self._journal.append(journal.line_of(report))
        elif isinstance(report, Evaluation):
            at = {"step": report.step, **took._asdict(), "samples_seen": report.samples_seen}
            self._metrics.append(to_json({"event": "evaluation", **at, **report.figures()}))
        else:
            self._metrics.append(to_json({"event": "snapshot", **report.as_dict()}))

    def go_back(self, step: int) -> None:
        """Mark in the metrics that the run went back to a step: lines of later steps before this one are of no use."""
        self._metrics.append(to_json({"event": "rolled_back", "step": step}))

    def complaints(self) -> list[str]:
        """Warnings about lines that wait, or were written after all, that were not returned before."""
        return [text for text in (self._journal.complaint(), self._metrics.complaint()) if text]

    def unwritten(self) -> list[str]:
        """Say at the end which lines could not be written."""
        return [text for text in (self._journal.unwritten(), self._metrics.unwritten()) if text]

    def leave(self) -> None:
        """Release the directory of a run that could not begin; a new one is removed where nothing is in it."""
        if self._is_new:
            leave(self.path, self._lock)
        else:
            self.close()

    def close(self) -> None:
        """Leave the directory to other processes."""
        self._lock.close()


def check_run(run: Path) -> None:
    """Raise UsageError unless it is the directory of a run."""
    if not run.is_dir():
        raise UsageError(
            f"RUN must be a run directory, {run} {'is a file' if run.exists() else 'does not exist'}", faq="not-a-run"
        )
    if not (run / "config.toml").is_file():
        raise UsageError(f"RUN must be a run directory, {run} has no config.toml", faq="not-a-run")
