"""The run as the routes see it: one that trains (shared state and a link to the trainer), or one that has ended (files)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from adaptive_rec.checkpoint.saved_placement import SavedPlacement, newest_placement
from adaptive_rec.config.knobs import Knobs, within_bounds
from adaptive_rec.errors import CheckpointError, ConfigError
from adaptive_rec.live.life import at_rest, is_held
from adaptive_rec.live.shared_state import PlacementArrays, StateReader
from adaptive_rec.service.damage import of_ended_run, of_tail, summary_of
from adaptive_rec.service.hello import Hello, Table, Values
from adaptive_rec.service.lines import ChoiceSummary
from adaptive_rec.service.metric_history import EventLog, MetricHistory
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.service.trainer_link import KnobState, TrainerLink
from adaptive_rec.service.written import WrittenAnswers
from adaptive_rec.system.process_use import ProcessMeter
from adaptive_rec.system.strict_json import fits

T = TypeVar("T")


class RunView(ABC):
    """A run as the routes read it. Only `placement` may be called outside the event loop's thread."""

    link: TrainerLink | None = None
    """The link to the trainer; None if the run has ended and takes no commands."""
    no_placement = "the run has ended; placement is known only while it trains"
    """Why the placement of rows cannot be read, where that is so."""
    meter: ProcessMeter | None = None
    """Reads what the trainer's process uses; None if the run has ended."""

    def __init__(self, hello: Hello, knobs: KnobState | None = None) -> None:
        self.hello = hello
        self.history = MetricHistory(Path(hello.run), len(hello.tables))
        self.events = EventLog(Path(hello.run))
        self.refresh()
        self._knobs = knobs or KnobState(hello.desired, hello.effective, hello.step)
        self.answers: WrittenAnswers[Any] = WrittenAnswers(self.version)
        """Answers made of what `version` stands for."""

    @property
    def knobs(self) -> KnobState:
        return self._knobs

    def refresh(self) -> None:
        """Read what was added to the run's files."""
        self.history.refresh()
        self.events.refresh()

    @abstractmethod
    def board(self) -> Values:
        """Return phase, step, newest snapshot and evaluation, knobs and row counts; empty before the first report."""

    def board_version(self) -> int:
        return 0

    def version(self) -> tuple[Any, ...]:
        """Return what changes with the board, the knobs and the files that were read: all that answers are made of, but for the
        last step, the placement of rows, and the time."""
        return self.board_version(), self.knobs.reports, self.history.tail.version, self.events.tail.version

    def placement_version(self) -> int:
        """Return a number that grows when the published placement of rows changes."""
        return 0

    def pulse(self) -> tuple[int, float] | None:
        """Return the last finished step and the time of the last sign of life (seconds since the epoch), or None."""
        return None

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float) -> T:
        """Return what `read` returns for the placement. `read` copies what it keeps. Any thread may call this."""
        raise ProblemError(409, self.no_placement)

    def damage(self) -> list[Values]:
        """Return the files of the run that are damaged, as `DamagedFile`."""
        return [each for log in (self.history, self.events) for each in of_tail(log.tail, not self.hello.live)]

    def error(self) -> str | None:
        """Return why the run failed or was suspended, or None if it was not."""
        end = self.events.end
        return end["text"] if end is not None and end["kind"] != "finished" else None

    def commands(self) -> TrainerLink:
        """Return the link to the trainer. Raises a problem if the run has ended."""
        if self.link is None:
            raise ProblemError(409, "the run has ended; it takes no commands")
        return self.link

    def table(self, named: int | str) -> Table:
        """Return a table by its index or its exact name."""
        for table in self.hello.tables:
            if named == (table.index if isinstance(named, int) else table.name):
                return table
        shown = repr(named[:100]) if isinstance(named, str) else named
        raise ProblemError(404, f"table must be an index below {len(self.hello.tables)} or a name, got {shown}")

    def table_in_path(self, text: str) -> Table:
        """Return a table by a path segment: an index if there is a table with this index, else a name."""
        indices = {str(table.index): table.index for table in self.hello.tables}
        return self.table(indices.get(text, text))


class LiveRun(RunView):
    """A run that trains."""

    def __init__(self, hello: Hello, reader: StateReader, link: TrainerLink, meter: ProcessMeter | None = None) -> None:
        super().__init__(hello, link.knobs)
        self.meter = meter
        self.link = link
        self._reader = reader
        self._board: tuple[int, Values] = (-1, {})

    def board(self) -> Values:
        version = self._reader.board_version()
        if version != self._board[0]:
            self._board = (version, self._reader.board())
            self._knobs.take_board(self._board[1])
        return self._board[1]

    @property
    def knobs(self) -> KnobState:
        """The knobs of the board or of the link, whichever are newer."""
        self.board()
        return self._knobs

    def board_version(self) -> int:
        return self._reader.board_version()

    def placement_version(self) -> int:
        return self._reader.placement_version()

    def pulse(self) -> tuple[int, float] | None:
        step, seconds = self._reader.pulse()
        return (step, seconds) if seconds > 0 else None

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float) -> T:
        return self._reader.placement(read, deadline_seconds)


class FinishedRun(RunView):
    """A run that has ended, read from its directory. One that another process has resumed is read again as its files grow; its
    placement, once it has ended."""

    def __init__(self, hello: Hello) -> None:
        self._seen: tuple[Any, Any, bool] | None = None
        self._saved: SavedPlacement | None = None
        self._placed: Values = {}
        self._reads = 0
        super().__init__(hello)
        self._read()

    def refresh(self) -> None:
        super().refresh()
        if self._seen is not None and self._seen != self._files():
            self._read()

    def _files(self) -> tuple[Any, Any, bool]:
        """Return what changes where a process goes on with the run: versions of its files, and whether one has it."""
        return self.history.tail.version, self.events.tail.version, is_held(Path(self.hello.run))

    def _read(self) -> None:
        self._seen, self._reads = self._files(), self._reads + 1
        values = last_values(self.hello.effective, self.events.knobs)
        if self._saved is None or not self._seen[2]:
            self._saved = self._read_placement()
        run = Path(self.hello.run)
        self._knobs = KnobState(values, values, self.events.knobs_step)
        newest = self.history.newest or {}
        self._board = {
            "phase": self._how_it_ended(),
            "step": newest.get("step", 0),
            "steps_total": newest.get("steps_total"),
            "snapshot": self.history.newest,
            "evaluation": self.history.evaluation,
            "best_evaluation": self.history.best_evaluation,
            "overfit": self.history.overfit_since(self.events.overfit),
            "placement": memory_at_the_end(run) | self._placed,
            **choice_at_the_end(run),
        }
        self._damage = of_ended_run(run)

    def damage(self) -> list[Values]:
        return super().damage() + self._damage

    def _read_placement(self) -> SavedPlacement | None:
        """Read the placement of the newest checkpoint, and its counts for the board."""
        first_rows = [table.first_row for table in self.hello.tables]
        rows = sum(table.rows for table in self.hello.tables)
        try:
            saved = newest_placement(Path(self.hello.run) / "checkpoints", first_rows, rows)
            fits_pools = len(saved.arrays.capacities) > max((table.pool for table in self.hello.tables), default=-1)
        except (CheckpointError, OSError, ValueError) as error:
            self.no_placement = f"the run has ended, and its placement cannot be read from a checkpoint: {error}"
            return None
        if not fits_pools:
            self.no_placement = f"the run has ended, and its checkpoint {saved.name} is of other tables"
            return None
        counts = {name: getattr(saved, name) for name in ("step", "version", "hot_rows", "stale_rows", "stale_threshold")}
        self._placed = {**counts, "checkpoint": saved.name}
        return saved

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float) -> T:
        return super().placement(read, deadline_seconds) if self._saved is None else read(self._saved.arrays)

    def _how_it_ended(self) -> str:
        """Return the state to which the journal leads."""
        run, spoilt = Path(self.hello.run), self.events.tail.left_out.count
        held = self._seen is not None and self._seen[2]
        return at_rest(self.events.state, held, lambda: not spoilt and summary_of(run) is not None)

    def board(self) -> Values:
        return self._board

    def board_version(self) -> int:
        return self._reads

    def placement_version(self) -> int:
        return self._reads


def memory_at_the_end(run: Path) -> Values:
    """Return the device memory in the summary, named as on a board; empty if there is no readable summary."""
    if (summary := summary_of(run)) is None:
        return {}
    return {name: summary.get(f"device_{name}", 0) for name in ("staging_bytes", "peak_bytes")}


def choice_at_the_end(run: Path) -> Values:
    """Return which model a run has chosen and why it has stopped, named as on a board; empty if no readable summary says it."""
    summary = summary_of(run)
    if summary is None or not summary.get("best_metric") or not fits(ChoiceSummary, summary):
        return {}
    scored = summary.get("eval") if summary.get("eval_mode") == "validation" else None
    return {
        "best_evaluation": summary.get("best_eval"),
        "best_metric": summary["best_metric"],
        "stopped_early": summary.get("stopped_early"),
        "held_out": scored and {"step": summary.get("eval_step") or 0, **scored},
    }


def last_values(first: Values, changed: Values) -> Values:
    """Return the knobs after all changes of the journal. Changes to values that are not valid are left out."""
    values = first
    for name, value in changed.items():
        with suppress(ConfigError):
            values = Knobs.model_validate(values).changed(within_bounds({name: value})).model_dump()
    return values
