"""The run as the routes see it: one that trains (shared state and a link to the trainer), or one that has ended (files)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.shared_state import PlacementArrays, StateReader
from adaptive_rec.service.hello import Hello, Table, Values
from adaptive_rec.service.lines import MemorySummary, fits, parsed
from adaptive_rec.service.metric_history import EventLog, MetricHistory
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.service.trainer_link import KnobState, TrainerLink

T = TypeVar("T")


class RunView(ABC):
    """What both kinds have in common. Everything but `placement` belongs to the event loop's thread."""

    link: TrainerLink | None = None
    """None where the run is over: it takes no commands."""

    def __init__(self, hello: Hello, knobs: KnobState | None = None) -> None:
        self.hello = hello
        self.history = MetricHistory(Path(hello.run))
        self.events = EventLog(Path(hello.run))
        self.refresh()
        self._knobs = knobs or KnobState(hello.desired, hello.effective, hello.step)

    @property
    def knobs(self) -> KnobState:
        return self._knobs

    def refresh(self) -> None:
        """Take in what the run's files have gained."""
        self.history.refresh()
        self.events.refresh()

    @abstractmethod
    def board(self) -> Values:
        """Phase, step, newest snapshot and evaluation, knobs, counts of rows; empty before the trainer has said anything."""

    def board_version(self) -> int:
        return 0

    def pulse(self) -> tuple[int, float] | None:
        """The last finished step, and the last sign of life in seconds since the epoch; None where nothing lives."""
        return None

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float) -> T:
        """What `read` makes of the placement; it copies what it keeps. Any thread may call this."""
        raise ProblemError(409, "the run has ended; placement is known only while it trains")

    def commands(self) -> TrainerLink:
        """The way to the trainer. Raises a problem where there is none any more."""
        if self.link is None:
            raise ProblemError(409, "the run has ended; it takes no commands")
        return self.link

    def table(self, named: int | str) -> Table:
        """A table by its index, or by its exact name."""
        for table in self.hello.tables:
            if named == (table.index if isinstance(named, int) else table.name):
                return table
        shown = repr(named[:100]) if isinstance(named, str) else named
        raise ProblemError(404, f"table must be an index below {len(self.hello.tables)} or a name, got {shown}")

    def table_in_path(self, text: str) -> Table:
        """A table by what stands in a path: digits are an index where there is such a one, else a name."""
        indices = {str(table.index): table.index for table in self.hello.tables}
        return self.table(indices.get(text, text))


class LiveRun(RunView):
    """A run that trains."""

    def __init__(self, hello: Hello, reader: StateReader, link: TrainerLink) -> None:
        super().__init__(hello, link.knobs)
        self.link = link
        self._reader = reader
        self._board: tuple[int, Values] = (-1, {})

    def board(self) -> Values:
        version = self._reader.board_version()
        if version != self._board[0]:
            self._board = (version, self._reader.board())
            self._knobs.seen(self._board[1])
        return self._board[1]

    @property
    def knobs(self) -> KnobState:
        """As the board has them, where that is newer than what came over the link."""
        self.board()
        return self._knobs

    def board_version(self) -> int:
        return self._reader.board_version()

    def pulse(self) -> tuple[int, float] | None:
        step, seconds = self._reader.pulse()
        return (step, seconds) if seconds > 0 else None

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float) -> T:
        return self._reader.placement(read, deadline_seconds)


class FinishedRun(RunView):
    """A run that has ended, from what it left in its directory."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        values = last_values(hello.effective, self.events.knobs)
        self._knobs = KnobState(values, values, self.events.knobs_step)
        ended = (Path(hello.run) / "summary.json").exists()
        newest = self.history.newest or {}
        self._board = {
            "phase": "finished" if ended else "stopped",
            "step": newest.get("step", 0),
            "steps_total": newest.get("steps_total", 0),
            "snapshot": self.history.newest,
            "evaluation": self.history.evaluation,
            "placement": memory_at_the_end(Path(hello.run)),
        }

    def board(self) -> Values:
        return self._board


def memory_at_the_end(run: Path) -> Values:
    """Device memory by the summary, named as on a board; nothing where there is no summary that can be read."""
    with suppress(OSError):
        summary = parsed((run / "summary.json").read_bytes())
        if summary is not None and fits(MemorySummary, summary):
            return {name: summary.get(f"device_{name}", 0) for name in ("staging_bytes", "peak_bytes")}
    return {}


def last_values(first: Values, changed: Values) -> Values:
    """Knobs after all changes of the journal. A value that no knob can have is none of them."""
    values = first
    for name, value in changed.items():
        with suppress(ConfigError):
            values = Knobs.model_validate(values).changed({name: value}).model_dump()
    return values
