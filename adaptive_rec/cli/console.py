"""The screen of a training run: a header, progress while it trains, a summary. Live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from adaptive_rec.cli.progress import MAX_WIDTH, PLAIN_EVERY_SECONDS, Display
from adaptive_rec.cli.run_text import (
    BEFORE,
    HELD_OUT,
    VALIDATED,
    header,
    length,
    positives_alone,
    quality_text,
    summary_lines,
)
from adaptive_rec.data.weights import weights_of
from adaptive_rec.live.telemetry import COMPILING, Event, Snapshot, ratio
from adaptive_rec.units import clock, count, percent, printable, whole

if TYPE_CHECKING:
    from adaptive_rec.run.current_run import CurrentRun
    from adaptive_rec.runtime.loop import Runtime
    from adaptive_rec.runtime.session import Report

SMOOTHING = 0.3
"""Weight of the newest snapshot in the figures shown."""
MENTIONED = 0.1
"""Share of a run's seconds from which on the compiling of kernels is mentioned."""
SHOWN = ("samples_per_second", "loss", "hot_lookup_ratio", "skipped_row_update_ratio", "skipped_sample_ratio")
PRINTED_EVENTS = {
    "knobs", "checkpoint", "paused", "resumed", "stopping", "split", "warning", "arranged", "nan", "checkpoint_failed",
    "rolled_back", "left_out", "watchdog", "overfit", "stopped_early",
}  # fmt: skip
"""Kinds of events that are printed; the figures show the others, or only the journal needs them."""


class Screen(Display):
    """The display of one run. `summary` comes after its context."""

    def __init__(self, to_stderr: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(stream or (sys.stderr if to_stderr else sys.stdout), width=MAX_WIDTH)
        self.pace = Pace()
        self._spinner = Spinner("dots", style="cyan")
        self._run: CurrentRun | None = None
        self._status = ""
        self._printed_at = 0.0
        self._stopping = False
        self._straggler: int | None = None
        """The rank that was named last."""
        self._compiled = 0.0
        """Time in which kernels were being compiled, up to the first step; once training has ended, from there on."""

    def abandon(self) -> None:
        """Restore the terminal at once: the process is about to end."""
        if self.live is not None:
            self.console.show_cursor(True)

    # While it runs ---------------------------------------------------------------------------------------------------

    def status(self, text: str) -> None:
        """Show the present activity, where there is no progress to show."""
        if self._run is not None:
            self._compiled = self.compiled_seconds - self._compiled
        self._status, self._run = text, None
        if self.live is None:
            self.note(f"{text} ...")

    def begin(self, runtime: Runtime) -> None:
        """Print the header."""
        self.console.print(header(runtime), markup=True)
        if (weights := weights_of(runtime.source)) is not None:
            self.console.print(f"weights     {weights.text}", markup=False)
        if remark := length(runtime):
            self.console.print(remark)
        for label, text in positives_alone(runtime):
            self.console.print(f"{label:<12}{text}")
        self.console.file.flush()

    def dashboard(self, url: str, link: str) -> None:
        """Print the address of the dashboard; only a terminal gets the link, whose sign-in code belongs in no log."""
        another = f"{program()} dashboard prints"
        if self.on_terminal:
            self.note(f"dashboard   {link}")
            self.note(f"            (signs in once, within 10 minutes; {another} another)")
        else:
            self.note(f"dashboard   {url}   ({another} a link that signs in)")

    def first_step(self, run: CurrentRun) -> None:
        """Show the wait for the first step; from then on, progress is shown."""
        self.status("first step")
        self._run, self._compiled = run, self.compiled_seconds

    @property
    def _runtime(self) -> Runtime | None:
        """The runtime that trains, if one does."""
        return None if self._run is None else self._run.runtime

    def show(self, event: Report) -> None:
        """Update the figures by a snapshot; print evaluations and requested changes as lines."""
        if isinstance(event, Event):
            if event.kind in PRINTED_EVENTS:
                kind = "warning: " if event.kind == "warning" else ""
                self.note(f"step {whole(event.step)}   {kind}{printable(event.text)}")
        elif not isinstance(event, Snapshot):
            followed = self._runtime is not None and self._runtime.followed is not None
            validates = self._runtime is not None and self._runtime.config.eval.validates
            of = BEFORE if followed or event.window is not None else VALIDATED if validates else HELD_OUT
            self.note(f"step {whole(event.step)}   {quality_text(event.quality.as_dict(), of)}")
        else:
            self._show_snapshot(event)

    def _show_snapshot(self, event: Snapshot) -> None:
        if event.straggler and event.straggler.rank != self._straggler:
            self._straggler = event.straggler.rank
            self.note(f"step {whole(event.step)}   {event.straggler.text}")
        if self.pace.follow(event) and self.live is None:
            total = event.steps_total
            last = event.step == total or self._stopping
            if last or time.monotonic() - self._printed_at >= PLAIN_EVERY_SECONDS:
                self._printed_at = time.monotonic()
                done = f"step {whole(event.step)}"
                if total is not None:
                    done += f" of {whole(total)} ({percent(ratio(event.step, total))})"
                left = "stopping" if self._stopping else self.pace.time_left(event.step)
                self.note("   ".join([done, *self._figures(), left]).rstrip())

    def stopping(self) -> None:
        """Note that a stop was requested; a signal handler calls this, so it prints nothing."""
        self._stopping = True

    def render(self) -> RenderableType:
        runtime, pace = self._runtime, self.pace
        if runtime is None or not pace.figures:
            self._spinner.text = Text(f"{self._status}{', ' + COMPILING if self._compiling else ''} ...", style="dim")
            return self._spinner
        step, total = runtime.step_number, max(runtime.steps_total, 1)
        if runtime.state.steps_total is None:
            return Text(" · ".join([f"step {whole(step)}", *self._figures()]), no_wrap=True, overflow="ellipsis")
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
        """Print the results of the run and its directory."""
        table = Table.grid(padding=(0, 3))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in summary_lines(summary):
            table.add_row(label, f"{value}{self._compiled_text(summary['seconds'])}" if label == "speed" else value)
        if self._stopping:
            table.add_row("stopped", "before its end; train --resume continues it")
        table.add_row("directory", Text(printable(str(out)), style="bold"))
        if (out / "report.html").is_file():
            table.add_row("report", Text(printable(str(out / "report.html"))))
        table.add_row("reopen", Text(printable(f"{program()} serve {shlex.quote(str(out))}")))
        self.console.print()
        self.console.print(table, soft_wrap=False, width=min(self.console.width, MAX_WIDTH))

    def _compiled_text(self, seconds: float) -> str:
        """Return how much of the time of training kernels were compiled in, where it made the run look slow."""
        if self._compiled < max(1.0, MENTIONED * seconds):
            return ""
        return f", {clock(min(self._compiled, seconds))} of it compiling kernels (later runs load them)"


class Pace:
    """Smoothed figures of the last snapshots. The second one replaces the first, which includes compiling."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._steps_per_second = 0.0
        self._total: int | None = 0
        self._seen = 0
        self._last = (0, 0.0)

    def follow(self, snapshot: Snapshot) -> bool:
        """Take in a snapshot. Returns False where no step was made since the last one."""
        if snapshot.step == self._last[0]:
            return False
        self._seen += 1
        weight = 1.0 if self._seen <= 2 else max(SMOOTHING, 1 / (self._seen - 1))
        for name in SHOWN:
            self.figures[name] = (1 - weight) * self.figures.get(name, 0.0) + weight * getattr(snapshot, name)
        if self._seen > 1:
            newest = ratio(snapshot.step - self._last[0], snapshot.seconds - self._last[1])
            self._steps_per_second = (1 - weight) * self._steps_per_second + weight * newest
        self._last, self._total = (snapshot.step, snapshot.seconds), snapshot.steps_total
        return True

    def time_left(self, step: int) -> str:
        """Return the estimated time to the end of the run, blank before there is an estimate."""
        if not self._steps_per_second or self._total is None:
            return ""
        return f"{clock((self._total - step) / self._steps_per_second)} left"


def program() -> str:
    """Return the command that starts this program: its name where PATH has it, else as it was called."""
    called, found = sys.argv[0], shutil.which("adaptive-rec")
    if os.path.basename(called) != "adaptive-rec" or (found and os.path.realpath(found) == os.path.realpath(called)):
        return "adaptive-rec"
    return shlex.quote(called)
