"""Progress of long commands: a live part on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Self, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptive_rec.live.telemetry import COMPILING
from adaptive_rec.units import clock, count, percent, printable

if TYPE_CHECKING:
    from adaptive_rec.data.prepare.checksums import StageProgress
    from adaptive_rec.offline.forecast.passes import Progress

MAX_WIDTH = 100
PLAIN_EVERY_SECONDS = 5.0
REFRESHES_PER_SECOND = 5
"""Each takes about 2 ms from training on a machine with few cores."""


class SurvivingStream:
    """A stream whose failures do not end a command: after the first one (a full disk, a reader or a terminal that is gone) all
    output
    is discarded. A note on standard error says so, but for a reader that has gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, words: str) -> int:
        try:
            return int(self._stream.write(words))
        except OSError as error:
            self._discard(error)
            return len(words)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        discarded = os.open(os.devnull, os.O_WRONLY)
        os.dup2(discarded, self._stream.fileno())
        os.close(discarded)
        if not isinstance(error, BrokenPipeError) and self._stream is not sys.stderr:
            with suppress(OSError):
                print(f"warning: the output cannot be written any more ({error.strerror}); the work goes on", file=sys.stderr)


class Display(ABC):
    """The output of a long command. Use as a context; a subclass renders the live part."""

    def __init__(self, stream: Any, width: int | None = None, auto_refresh: bool = True) -> None:
        self.on_terminal = stream.isatty()
        self.console = Console(
            file=cast(IO[str], SurvivingStream(stream)), highlight=False, emoji=False, markup=False,
            soft_wrap=not self.on_terminal, width=None if self.on_terminal else width,
        )  # fmt: skip
        self.live: Live | None = None
        """The live part, from the context's beginning on; None where there is none."""
        self._auto_refresh = auto_refresh
        self._compiling = 0
        self._compiling_logged = False
        self._compiling_since = 0.0
        self.compiled_seconds = 0.0
        """Time in which kernels were being compiled."""

    def __enter__(self) -> Self:
        if self.on_terminal and not self.console.is_dumb_terminal:
            self.live = Live(  # not earlier: it renders at once
                console=self.console, get_renderable=self.render, auto_refresh=self._auto_refresh,
                refresh_per_second=REFRESHES_PER_SECOND, transient=True,
            )  # fmt: skip
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    @abstractmethod
    def render(self) -> RenderableType:
        """Return the live part."""

    def note(self, text: str) -> None:
        """Print a line, never broken; may be called from any thread."""
        self.console.print(Text(printable(text, keep="\n")), soft_wrap=True)
        self.console.file.flush()

    def compiling(self, starts: bool) -> None:
        """Count the kernels being compiled; may be called from any thread."""
        now = time.monotonic()
        if self._compiling:
            self.compiled_seconds += now - self._compiling_since
        self._compiling_since = now
        self._compiling += 1 if starts else -1
        if self.live is None and not self._compiling_logged:
            self._compiling_logged = True
            self.note(f"{COMPILING} ...")


class StageBar(Display):
    """Progress of the stages in which data is prepared or verified. `show` may be called from any thread."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._lock = Lock()
        self._stage = ("", "")
        self._started = self._printed = 0.0
        self._first_rows = 0
        self._line = Text()
        self._done_ratio = 0.0
        self._figures = ""

    def show(self, progress: StageProgress) -> None:
        """Take in the progress of a stage; in a pipe, print it every few seconds."""
        with self._lock:
            now, stage = time.monotonic(), (progress.stage, progress.what)
            new, name = stage != self._stage, f"{progress.stage} {progress.what}"
            if new:
                self._stage, self._started, self._first_rows = stage, now, progress.rows
            if self.live is not None:
                self._line, self._done_ratio = Text(printable(name)), progress.done_ratio
                self._figures = self._figures_of(progress, now)
            elif new or now - self._printed >= PLAIN_EVERY_SECONDS:
                self._printed = now
                self.note(f"{name} ..." if new else f"{name}   {self._figures_of(progress, now)}")

    def render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(1.0, self._done_ratio, width=24, complete_style="cyan", finished_style="cyan")
        grid.add_row(self._line, bar, Text(COMPILING if self._compiling else self._figures, style="cyan"))
        return grid

    def _figures_of(self, progress: StageProgress, now: float) -> str:
        seconds = now - self._started
        figures = [percent(progress.done_ratio)]
        if progress.stage == "reading":
            figures.append(f"{count(progress.rows)} rows")
            if seconds > 1:
                figures.append(f"{count((progress.rows - self._first_rows) / seconds)} rows/s")
        if seconds > 2 and progress.done_ratio > 0.02:
            figures.append(f"{clock(seconds * (1 / progress.done_ratio - 1))} left")
        return "   ".join(figures)


@contextmanager
def compiling_shown(display: Display) -> Iterator[None]:
    """Report while Numba compiles a kernel that its cache does not hold."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, _: event.Event) -> None:
            display.compiling(True)

        def on_end(self, _: event.Event) -> None:
            display.compiling(False)

    with event.install_listener("numba:compile", Listener()):
        yield


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """Yield a function that moves a bar on a terminal and does nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with RichProgress(*shown, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("opening the data", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
