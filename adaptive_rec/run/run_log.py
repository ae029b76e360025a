"""What a run says of itself: its journal and metrics, the figures that its trackers get, and the report page at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.errors import first_line
from adaptive_rec.live.recorder import NO_TIME, LoopTime
from adaptive_rec.live.telemetry import Evaluation, Event
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.run.directory import RunDirectory
from adaptive_rec.runtime.session import Report

if TYPE_CHECKING:
    from adaptive_rec.run.tracked import Tracking

HURRIED_REPORT_BYTES = 16 << 20
"""Size of the metrics up to which the report page is written after a signal, as that takes well under a second."""


class RunLog:
    """Writes what a run reports to its directory and to its trackers."""

    def __init__(
        self,
        directory: RunDirectory,
        present: CurrentRun,
        trackers: Sequence[str],
        write_report: Callable[[Path], object] | None = None,
    ) -> None:
        """`trackers`: their names. `write_report` writes the report page of a run directory. Raises UsageError where a tracker
        cannot be made."""
        self._directory, self._present, self._write_report = directory, present, write_report
        self._tracking = _tracking(trackers, directory, present) if trackers else None
        self.last_words: list[Event] = []
        """Warnings that came after the last report."""

    def note(self, kind: str, text: str, **details: Any) -> Event:
        """Write an event of this moment to the journal."""
        event = Event(self._present.state.step, kind, text, details)
        self.add(event)
        return event

    def add(self, report: Report, took: LoopTime = NO_TIME) -> None:
        """Write a report: an event to the journal, figures to the metrics. An evaluation is stamped with what the loop `took`."""
        self._directory.append(report, took)
        if self._tracking is not None:
            self._tracking.add(report)
        if isinstance(report, Evaluation):
            window = {} if (scored := report.window) is None else {"window_samples": scored.end_sample - scored.first_sample}
            self.note("evaluation", str(report.quality), **window)

    def complaints(self) -> Iterator[Event]:
        """Warn of lines that wait for the disk, and of trackers."""
        tracked = () if self._tracking is None else self._tracking.trackers.complaints()
        for text in (*self._directory.complaints(), *tracked):
            yield self.note("warning", text)

    def go_back(self, event: Event) -> None:
        """Write that the run went back to the step of an event."""
        self._directory.go_back(event.step)
        if self._tracking is not None:
            self._tracking.begin_figures()
        self.add(event)

    def restart_trackers(self) -> Iterator[Event]:
        """Have trackers begin again at the present step, to which the run went back."""
        if self._tracking is not None:
            for text in self._tracking.restart():
                yield self.note("warning", text)

    # After the last report -------------------------------------------------------------------------------------------

    def last(self, event: Event) -> None:
        """Write an event that comes after the last report."""
        self.add(event)
        self.last_words.append(event)

    def warn(self, text: str) -> None:
        """Warn after the last report."""
        self.last_words.append(self.note("warning", text))

    def fail(self, error: Exception) -> None:
        """Write that the run failed."""
        self.note("failed", f"{type(error).__name__}: {error}")

    def end_tracking(self) -> None:
        """Let trackers log what they still have, and warn of what is lost."""
        if self._tracking is not None:
            for text in self._tracking.end():
                self.warn(text)

    def report(self) -> None:
        """Write the report page. A failure is a warning, and after a signal it must not take long."""
        metrics = self._directory.path / "metrics.jsonl"
        too_long = metrics.exists() and metrics.stat().st_size > HURRIED_REPORT_BYTES
        if self._write_report is None or (self._present.state.hurried and too_long):
            return
        try:
            self._write_report(self._directory.path)
        except Exception as error:
            self.warn(f"no report could be made ({type(error).__name__}: {first_line(error)})")

    def unwritten(self) -> None:
        """Warn at the end of lines that wait for the disk, or could not be written."""
        for text in (*self._directory.complaints(), *self._directory.unwritten()):
            self.warn(text)


def _tracking(trackers: Sequence[str], directory: RunDirectory, present: CurrentRun) -> Tracking:
    from adaptive_rec.run.tracked import Tracking

    return Tracking(trackers, directory.path, present)
