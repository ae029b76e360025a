"""The run directory of a user's training loop, which a dashboard and the shell commands read."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path

from adaptive_rec.live.telemetry import Event
from adaptive_rec.run.description import describe_run
from adaptive_rec.run.directory import RunDirectory
from adaptive_rec.run.new_directory import check_run_is_new
from adaptive_rec.runtime.session import Report, Session
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
