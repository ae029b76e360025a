"""A training loop of the user's own with a run's directory: served, recorded and tracked as ``adaptive-rec train`` is."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.config.tree import to_toml
from adaptive_rec.errors import UsageError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.sidecar import Sidecar
from adaptive_rec.live.telemetry import Event, Snapshot, to_json
from adaptive_rec.run import journal
from adaptive_rec.run.description import description
from adaptive_rec.run.directory import replace_text, sole_writer
from adaptive_rec.run.line_file import LineFile
from adaptive_rec.runtime.session import Report

if TYPE_CHECKING:
    from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime

LOG = logging.getLogger("adaptive_rec")


class LoopDirectory:
    """A run's directory: what it is, its journal and its figures, as they come."""

    def __init__(self, runtime: EmbeddingRuntime, out: Path) -> None:
        """Raises UsageError where `out` cannot be written, or is in use."""
        self.out, self.runtime = out, runtime
        try:
            if out.exists() and any(out.iterdir()):
                raise UsageError(f"out must be a new directory, {out} exists")
            out.mkdir(parents=True, exist_ok=True)
            self._lock = sole_writer(out)
            replace_text(out / "config.toml", to_toml(runtime.config))
            facts = description(runtime, out.resolve().name, shlex.join(sys.argv), own_loop=True)
            replace_text(out / "run.json", to_json(facts, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"out {out} cannot be written: {error.strerror}") from None
        self._journal, self._metrics = LineFile(out / journal.NAME), LineFile(out / "metrics.jsonl")
        self.note("started", f"{runtime.knobs.policy} on {runtime.device}, in a loop of the user's own")

    def note(self, kind: str, text: str) -> None:
        """Write an event of this moment to the journal."""
        self.append(Event(self.runtime.step_number, kind, text))

    def append(self, report: Report) -> None:
        """Write an event to the journal, or figures beside it. Nobody fails for want of room."""
        if isinstance(report, Event):
            self._journal.append(journal.line_of(report))
        elif isinstance(report, Snapshot):
            self._metrics.append(to_json({"event": "snapshot", **report.as_dict()}))
        for text in filter(None, (self._journal.complaint(), self._metrics.complaint())):
            LOG.warning(text)

    def close(self) -> None:
        self.note("finished", "the loop has ended")
        if self._lock is not None:
            self._lock.close()


class LoopService:
    """The dashboard and the HTTP API of a loop, from here to `close`."""

    def __init__(self, record: LoopDirectory, options: ServeOptions) -> None:
        self._sidecar = Sidecar(options, record.out, record, LOG.warning)
        self._sidecar.__enter__()
        self.url, self.dashboard_url = self._sidecar.url, self._sidecar.dashboard_url

    def close(self) -> None:
        self._sidecar.__exit__()
