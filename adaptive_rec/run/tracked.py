"""What the trackers of a run get of its reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from adaptive_rec.live.telemetry import Evaluation, Event
from adaptive_rec.run.current_run import CurrentRun
from adaptive_rec.runtime.session import Report
from adaptive_rec.tracker.feed import CLOSE_SECONDS, Trackers
from adaptive_rec.tracker.values import SnapshotFigures, of_evaluation

HURRIED_SECONDS = 0.5
"""Time that trackers have left after a signal."""


class Tracking:
    """Passes the reports of a run on to its trackers."""

    def __init__(self, names: Sequence[str], directory: Path, present: CurrentRun) -> None:
        """Raises UsageError where a tracker cannot be made."""
        self._names, self._directory, self._present = names, directory, present
        self.begin_figures()
        self.trackers = Trackers(names, directory, present.state.step)

    def begin_figures(self) -> None:
        """Have figures of windows begin at the present step."""
        assert self._present.runtime is not None
        self._figures = SnapshotFigures([table.name for table in self._present.runtime.store.peers.batch_space.tables])

    def add(self, report: Report) -> None:
        if isinstance(report, Event):
            self.trackers.event(report.step, report.kind, report.text)
            return
        values = of_evaluation(report) if isinstance(report, Evaluation) else self._figures.of_snapshot(report)
        self.trackers.log(report.step, values)

    def restart(self) -> Iterable[str]:
        """Have trackers begin again at the present step, to which the run went back. Returns warnings."""
        return self.trackers.restart(self._names, self._directory, self._present.state.step)

    def end(self) -> Iterable[str]:
        """Let trackers log what they still have. Returns warnings of what is lost."""
        self.trackers.close(HURRIED_SECONDS if self._present.state.hurried else CLOSE_SECONDS)
        return self.trackers.complaints()
