"""What a person sees while data is prepared or verified."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from adaptive_rec.live.telemetry import COMPILING
from adaptive_rec.units import clock, count, percent

if TYPE_CHECKING:
    from adaptive_rec.data.prepare.checksums import StageProgress

PLAIN_EVERY_SECONDS = 5.0
REDRAW_EVERY_SECONDS = 0.2


class Bar:
    """Progress of the stages: a bar on a terminal, a line every few seconds elsewhere. May be told from any thread."""

    def __init__(self, stream: Any) -> None:
        self._console = Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=not stream.isatty())
        self._live = None
        if stream.isatty() and not self._console.is_dumb_terminal:
            text = TextColumn("{task.description}", markup=False)
            figures = TextColumn("{task.fields[figures]}", style="cyan", markup=False)
            bar = BarColumn(24, complete_style="cyan", finished_style="cyan")
            self._live = RichProgress(text, bar, figures, console=self._console, transient=True, refresh_per_second=5)
            self._task = self._live.add_task("", total=1.0, figures="")
        self._lock = Lock()
        self._stage = ("", "")
        self._began = self._said = 0.0
        self._first_rows = 0
        self._told_compiling = False

    def __enter__(self) -> Bar:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def compiling(self, begins: bool) -> None:
        """Kernels are being compiled, or no longer."""
        with self._lock:
            if begins and not self._told_compiling:
                self._told_compiling = True
                self._console.print(f"{COMPILING} ...")

    def show(self, progress: StageProgress) -> None:
        """Take in how far a stage is; most of what comes is not worth drawing."""
        with self._lock:
            now, stage = time.monotonic(), (progress.stage, progress.what)
            new = stage != self._stage
            if new:
                self._stage, self._began, self._first_rows = stage, now, progress.rows
            if not new and now - self._said < (PLAIN_EVERY_SECONDS if self._live is None else REDRAW_EVERY_SECONDS):
                return
            self._said = now
            name = f"{progress.stage} {progress.what}"
            figures = "   ".join(self._figures(progress, now))
            if self._live is None:
                self._console.print(f"{name} ..." if new else f"{name}   {figures}")
            else:
                self._live.update(self._task, description=name, completed=progress.done_ratio, figures=figures)

    def _figures(self, progress: StageProgress, now: float) -> list[str]:
        seconds = now - self._began
        figures = [percent(progress.done_ratio)]
        if progress.stage == "reading":
            figures.append(f"{count(progress.rows)} rows")
            if seconds > 1:
                figures.append(f"{count((progress.rows - self._first_rows) / seconds)} rows/s")
        if seconds > 2 and progress.done_ratio > 0.02:
            figures.append(f"{clock(seconds * (1 / progress.done_ratio - 1))} left")
        return figures
