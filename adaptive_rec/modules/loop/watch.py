"""What others see of a user's loop: its run directory, the service of it, and trackers."""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.sidecar import Sidecar
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.run.description import describe_run
from adaptive_rec.run.directory import RunDirectory
from adaptive_rec.run.new_directory import check_run_is_new, named_directory, new_directory
from adaptive_rec.runtime.session import Report, Session
from adaptive_rec.tracker.feed import Trackers
from adaptive_rec.tracker.values import SnapshotFigures
from adaptive_rec.units import printable

LOG = logging.getLogger("adaptive_rec")


class LoopDirectory:
    """A new run directory with the description, the journal and the figures of a user's training loop."""

    def __init__(self, session: Session, out: Path) -> None:
        """Raises UsageError where `out` is not new or cannot be written."""
        self._state = session.state
        check_run_is_new(out, "out", hint="")
        self._directory = RunDirectory(out)
        facts = describe_run(session, out.resolve().name, shlex.join(sys.argv), own_loop=True)
        self._directory.create(session.config, facts, option="out")
        self._note("started", f"{session.knobs.policy} on {session.device}, in a loop of the user's own")

    def append(self, report: Report) -> None:
        """Write an event to the journal, or figures to the metrics. A full disk is logged and is not an error."""
        self._directory.append(report)
        for text in self._directory.complaints():
            LOG.warning(printable(text))

    def close(self) -> None:
        """Write the last event and release the directory."""
        self._note("finished", "the loop has ended")
        self._directory.close()

    def _note(self, kind: str, text: str) -> None:
        self.append(Event(self._state.step, kind, text))


class LoopWatch:
    """Passes the reports of a loop on to its journal, the log and the trackers, and serves it."""

    def __init__(self, session: Session, tables: TablesInTiers) -> None:
        self._session, self._tables = session, tables
        self._directory: LoopDirectory | None = None
        self._sidecar: Sidecar | None = None
        self._trackers: Trackers | None = None
        self._figures = SnapshotFigures([table.name for table in tables.space.tables])

    def serve(self, out: str | Path | None, **where: Any) -> str:
        """Serve the loop; see `EmbeddingRuntime.serve`."""
        self._tables.life.check_open("served")
        if not self._tables.rows.group.is_alone:
            raise ConfigError(f"a loop that is served must be of one process, there are {self._tables.rows.group.ranks}")
        if self._sidecar is not None:
            raise ConflictError(f"the loop must not be served already, it is at {self._sidecar.url}")
        options = ServeOptions(**where)
        if not self._session.state.rows_placed:
            self._session.begin()
        policy = self._session.knobs.policy
        named = new_directory(named_directory(policy)) if out is None else nullcontext(Path(out))
        with named as place:
            self.record(place)
        try:
            self._sidecar = Sidecar(options, place, self._session, LOG.warning).__enter__()
        except BaseException:
            self._end_record()
            raise
        self._session.publisher.enter("training")
        return self._sidecar.url

    def record(self, out: Path) -> None:
        """Keep the journal and the figures of the loop in a new run directory."""
        self._directory = LoopDirectory(self._session, out)

    def _end_record(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    @property
    def dashboard_url(self) -> str:
        """The link that signs in to the dashboard. Empty where the loop is not served."""
        return self._sidecar.dashboard_url if self._sidecar is not None else ""

    def track(self, name: str, folder: Path) -> None:
        """Send figures to a tracker, which may write files to a folder."""
        self._tables.life.check_open("tracked")
        self._trackers = self._trackers or Trackers([], folder)
        self._trackers.add(name, folder, self._session.step_number)

    def emit(self, report: Report) -> None:
        """Pass a report on."""
        if self._directory is not None:
            self._directory.append(report)
        if isinstance(report, Event) and report.kind == "warning":
            LOG.warning(printable(report.text))
        if self._trackers is not None:
            if isinstance(report, Snapshot):
                self._trackers.log(report.step, self._figures.of_snapshot(report))
            elif isinstance(report, Event):
                self._trackers.event(report.step, report.kind, report.text)
            for text in self._trackers.complaints():
                self._session.state.warn(text)

    def close(self) -> None:
        """End the service and the trackers."""
        if self._trackers is not None:
            self._trackers.close()
            for text in self._trackers.complaints():
                LOG.warning(printable(text))
        self._end_record()
        if self._sidecar is not None:
            self._sidecar.__exit__()
