"""What a person sees of a run: a header, progress while it trains, a summary. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from adaptive_rec.cli.run_text import header, length, quality_text, summary_lines
from adaptive_rec.live.telemetry import COMPILING, Event, Snapshot, ratio
from adaptive_rec.units import clock, count, percent, printable, whole

if TYPE_CHECKING:
    from adaptive_rec.runtime.loop import Report, Runtime

MAX_WIDTH = 100
PLAIN_EVERY_SECONDS = 5.0
REFRESHES_PER_SECOND = 5
"""Each takes about 2 ms from training on a machine with few cores."""
SMOOTHING = 0.3
"""Weight of the newest snapshot in the figures shown."""
SHOWN = ("samples_per_second", "loss", "hot_lookup_ratio", "skipped_row_update_ratio", "skipped_sample_ratio")
TOLD_EVENTS = {
    "knobs",
    "checkpoint",
    "paused",
    "resumed",
    "stopping",
    "split",
    "warning",
    "arranged",
    "nan",
    "checkpoint_failed",
}
"""Kinds of events that are printed; the others are told by the figures, or concern the journal only."""


class _Console(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Say nothing from now on, where Rich would end the process: training goes on."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Screen:
    """The display of one run. Use as a context; `summary` comes after it."""

    def __init__(self, to_stderr: bool = False) -> None:
        self.pace = Pace()
        self._spinner = Spinner("dots", style="cyan")
        self._runtime: Runtime | None = None
        self._status = ""
        self._compiling = 0
        self._told_compiling = False
        self._said_at = 0.0
        self._stopping = False
        stream = sys.stderr if to_stderr else sys.stdout
        interactive = self._on_terminal = stream.isatty()
        width = None if interactive else MAX_WIDTH
        self.console = _Console(file=stream, highlight=False, emoji=False, soft_wrap=not interactive, width=width)
        self.live: Live | None = None
        if interactive and not self.console.is_dumb_terminal:
            rate = REFRESHES_PER_SECOND
            self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=rate, transient=True)

    def __enter__(self) -> Screen:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def abandon(self) -> None:
        """Give the terminal back without ceremony: the process is about to end."""
        if self.live is not None:
            self.console.show_cursor(True)

    # While it runs ---------------------------------------------------------------------------------------------------

    def status(self, text: str) -> None:
        """Say what is going on where there is no progress to show."""
        self._status, self._runtime = text, None
        if self.live is None:
            self._say(f"{text} ...")

    def compiling(self, begins: bool) -> None:
        """Kernels are being compiled, or no longer; may come from any thread."""
        self._compiling += 1 if begins else -1
        if self.live is None and not self._told_compiling:
            self._told_compiling = True
            self._say(f"{COMPILING} ...")

    def begin(self, runtime: Runtime) -> None:
        """Print the header."""
        self._say(header(runtime), markup=True)
        if said := length(runtime):
            self._say(said)

    def dashboard(self, url: str, link: str) -> None:
        """Say where the dashboard is: on a terminal by the link with its token, which belongs in no log."""
        how = link if self._on_terminal else f"{url}   ({program()} dashboard prints the link with its token)"
        self.note(f"dashboard   {how}")

    def note(self, text: str) -> None:
        """Print a line, never broken; may come from any thread."""
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()

    def first_step(self, runtime: Runtime) -> None:
        """Wait for it; progress is shown from then on."""
        self.status("first step")
        self._runtime = runtime

    def show(self, event: Report) -> None:
        """A snapshot moves the figures; an evaluation stands as a line of its own, and so does what somebody asked for."""
        if isinstance(event, Event):
            if event.kind in TOLD_EVENTS:
                self.note(f"step {whole(event.step)}   {printable(event.text)}")
        elif not isinstance(event, Snapshot):
            self._say(f"step {whole(event.step)}   {quality_text(vars(event.quality))}")
        elif self.pace.follow(event) and self.live is None:
            total = event.steps_total or event.step
            last = event.step >= total or self._stopping
            if last or time.monotonic() - self._said_at >= PLAIN_EVERY_SECONDS:
                self._said_at = time.monotonic()
                done = f"step {whole(event.step)} of {whole(total)} ({percent(ratio(event.step, total))})"
                left = "stopping" if self._stopping else self.pace.time_left(event.step)
                self._say("   ".join([done, *self._figures(), left]).rstrip())

    def stopping(self) -> None:
        """The user asked to stop; called by a signal handler, so nothing is printed here."""
        self._stopping = True

    def _say(self, text: str, markup: bool = False) -> None:
        self.console.print(text, markup=markup)
        if self.live is None:
            self.console.file.flush()

    def _render(self) -> RenderableType:
        runtime, pace = self._runtime, self.pace
        if runtime is None or not pace.figures:
            self._spinner.text = Text(f"{self._status}{', ' + COMPILING if self._compiling else ''} ...", style="dim")
            return self._spinner
        step, total = runtime.step_number, max(runtime.steps_total, 1)
        line = Table.grid(padding=(0, 2))
        line.add_column(width=min(self.console.width, MAX_WIDTH) - 50)
        line.add_column(justify="right", width=5)
        line.add_column(justify="right", width=22)
        line.add_column(justify="right", width=14)
        left = Text("stopping ...", "yellow") if self._stopping else Text(pace.time_left(step), "cyan")
        bar = ProgressBar(total, min(step, total), complete_style="cyan", finished_style="cyan")
        line.add_row(bar, percent(step / total), f"{whole(step)} / {whole(total)} steps", left)
        return Group(line, Text(" · ".join(self._figures()), style="dim", no_wrap=True, overflow="ellipsis"))

    def _figures(self) -> list[str]:
        now, runtime = self.pace.figures, self._runtime
        speed, loss, hot = now["samples_per_second"], now["loss"], now["hot_lookup_ratio"]
        figures = [f"{count(speed)} samples/s", f"loss {loss:.4f}", f"hot lookups {percent(hot)}"]
        if runtime is not None and not runtime.policy.exact:
            freeze = runtime.knobs.action == "freeze"
            share, what = ("skipped_row_update_ratio", "row updates") if freeze else ("skipped_sample_ratio", "samples")
            figures.append(f"skipped {percent(now[share])} of {what}")
        return figures

    # At the end ------------------------------------------------------------------------------------------------------

    def summary(self, summary: Mapping[str, Any], out: Path) -> None:
        """What the run came to, and where it is."""
        table = Table.grid(padding=(0, 3))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in summary_lines(summary):
            table.add_row(label, value)
        if self._stopping:
            table.add_row("stopped", "before its end; --resume goes on from here")
        table.add_row("directory", Text(str(out), style="bold"))
        if (out / "report.html").is_file():
            table.add_row("report", Text(str(out / "report.html")))
        table.add_row("reopen", Text(f"{program()} serve {shlex.quote(str(out))}"))
        self.console.print()
        self.console.print(table, soft_wrap=False, width=min(self.console.width, MAX_WIDTH))


class Pace:
    """Smoothed figures of the last snapshots; the first one, which includes compiling, is forgotten at the second."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._steps_per_second = 0.0
        self._total = 0
        self._seen = 0
        self._last = (0, 0.0)

    def follow(self, snapshot: Snapshot) -> bool:
        """Take in a snapshot. False where nothing happened since the one before."""
        if snapshot.step == self._last[0]:
            return False
        self._seen += 1
        weight = 1.0 if self._seen <= 2 else max(SMOOTHING, 1 / (self._seen - 1))
        for name in SHOWN:
            self.figures[name] = (1 - weight) * self.figures.get(name, 0.0) + weight * getattr(snapshot, name)
        if self._seen > 1:
            newest = ratio(snapshot.step - self._last[0], snapshot.seconds - self._last[1])
            self._steps_per_second = (1 - weight) * self._steps_per_second + weight * newest
        self._last, self._total = (snapshot.step, snapshot.seconds), snapshot.steps_total or snapshot.step
        return True

    def time_left(self, step: int) -> str:
        """Rough time to the end of the run, blank as long as it cannot be told."""
        return f"{clock((self._total - step) / self._steps_per_second)} left" if self._steps_per_second else ""


@contextmanager
def compiling_shown(screen: Screen) -> Iterator[None]:
    """Say so while Numba compiles a kernel that its cache does not hold."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, _: event.Event) -> None:
            screen.compiling(True)

        def on_end(self, _: event.Event) -> None:
            screen.compiling(False)

    with event.install_listener("numba:compile", Listener()):
        yield


def program() -> str:
    """This program as the user can call it: by its name where the path has it, else as it was called."""
    called, found = sys.argv[0], shutil.which("adaptive-rec")
    if os.path.basename(called) != "adaptive-rec" or (found and os.path.realpath(found) == os.path.realpath(called)):
        return "adaptive-rec"
    return shlex.quote(called)
