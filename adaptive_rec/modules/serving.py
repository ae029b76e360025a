"""A training loop of the user's own with a run's directory: served, recorded and tracked as ``adaptive-rec train`` is."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.sidecar import Sidecar
from adaptive_rec.live.telemetry import Event
from adaptive_rec.run.description import description
from adaptive_rec.run.directory import RunDirectory
from adaptive_rec.run.new_directory import check_is_new
from adaptive_rec.runtime.session import Report

if TYPE_CHECKING:
    from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime

LOG = logging.getLogger("adaptive_rec")


class LoopDirectory:
    """A run's directory: what it is, its journal and its figures, as they come."""

    def __init__(self, runtime: EmbeddingRuntime, out: Path) -> None:
        """Raises UsageError where `out` cannot be written, or is in use."""
        self.out, self.runtime = out, runtime
        check_is_new(out, "out", hint="")
        self._directory = RunDirectory(out)
        facts = description(runtime, out.resolve().name, shlex.join(sys.argv), own_loop=True)
        self._directory.create(runtime.config, facts, option="out")
        self.note("started", f"{runtime.knobs.policy} on {runtime.device}, in a loop of the user's own")

    def note(self, kind: str, text: str) -> None:
        """Write an event of this moment to the journal."""
        self.append(Event(self.runtime.step_number, kind, text))

    def append(self, report: Report) -> None:
        """Write an event to the journal, or figures beside it. Nobody fails for want of room."""
        self._directory.append(report)
        for text in self._directory.complaints():
            LOG.warning(text)

    def close(self) -> None:
        self.note("finished", "the loop has ended")
        self._directory.close()


class LoopService:
    """The dashboard and the HTTP API of a loop, from here to `close`."""

    def __init__(self, record: LoopDirectory, options: ServeOptions) -> None:
        self._sidecar = Sidecar(options, record.out, record.runtime, LOG.warning)
        self._sidecar.__enter__()
        self.url, self.dashboard_url = self._sidecar.url, self._sidecar.dashboard_url

    def close(self) -> None:
        self._sidecar.__exit__()
