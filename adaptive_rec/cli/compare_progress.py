"""Progress of a comparison on the screen: the run under way, how far it has come, and the time left for all runs."""

from __future__ import annotations

import sys
import time
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptive_rec.offline.compare.plan import Turn
from adaptive_rec.offline.compare.processes import ProcessEnd, RunProgress
from adaptive_rec.units import clock, count, printable

MAX_WIDTH = 100


class Board:
    """Progress over the missing runs: one changing line on a terminal, a line per run in a log. Used as a context manager."""

    def __init__(self, turns: list[Turn], made: int, to_stderr: bool = False) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        interactive = stream.isatty()
        self.console = Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=not interactive)
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if interactive else None
        self._left = turns
        self._made, self._total = made, made + len(turns)
        self._turn: Turn | None = None
        self._began = 0.0
        self._lasted: dict[str, list[float]] = {}
        """Seconds of each run that ended here, by policy."""

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, turn: Turn) -> None:
        self._turn, self._began = turn, time.monotonic()
        self.watch(None)

    def watch(self, progress: RunProgress | None) -> None:
        """Show the progress of the present run, on a terminal only; a log reports each run at its end."""
        if self._live is not None and self._turn is not None:
            self._live.update(self._line(self._turn, progress), refresh=True)

    def end(self, turn: Turn, outcome: ProcessEnd, figures: dict[str, Any] | None) -> None:
        """Print the result of a run."""
        self._left = [other for other in self._left if other != turn]
        self._made += 1
        self._lasted.setdefault(turn.policy, []).append(time.monotonic() - self._began)
        where = f"run {self._made} of {self._total}"
        if figures is None:
            said = f"failed: {outcome.why}"
        else:
            quality = "not scored" if figures["auc"] is None else f"AUC {figures['auc']:.4f}"
            said = f"{figures['seconds']:.1f} s, {count(figures['samples_per_second'])} samples/s, {quality}"
        left = self._seconds_left()
        rest = f"   {clock(left)} left" if left and self._left else ""
        self.note(f"{where}   seed {turn.seed}   {turn.policy:<{self._width}}   {said}{rest}")

    def note(self, text: str) -> None:
        self.console.print(Text(printable(text)), soft_wrap=True)
        self.console.file.flush()

    @property
    def _width(self) -> int:
        return max((len(name) for name in (*self._lasted, *(turn.policy for turn in self._left))), default=0)

    def _line(self, turn: Turn, progress: RunProgress | None) -> Table:
        share = progress.step / max(progress.steps, 1) if progress else 0.0
        width = min(self.console.width, MAX_WIDTH)
        left = self._seconds_left(progress)
        title = f"run {self._made + 1} of {self._total} · {printable(turn.policy)}, seed {turn.seed}"
        all_left = f"{clock(left)} left for all" if left else "starting" if progress is None else ""
        line = Table.grid(padding=(0, 2))
        line.add_column(no_wrap=True, overflow="ellipsis", max_width=max(24, width - 50))
        line.add_column(width=16)
        line.add_column(justify="right", width=5)
        line.add_column(no_wrap=True, style="cyan")
        line.add_row(title, ProgressBar(1.0, share, complete_style="cyan"), f"{share:.0%}", all_left)
        return line

    def _seconds_left(self, progress: RunProgress | None = None) -> float | None:
        """Estimate the time left for all runs from the finished ones; None while there is nothing to estimate from."""
        spent = time.monotonic() - self._began
        present = None
        if progress and progress.step:
            present = progress.seconds / progress.step * (progress.steps - progress.step)
        known = {policy: fmean(seconds) for policy, seconds in self._lasted.items()}
        usual = fmean(known.values()) if known else None if present is None else spent + present
        if usual is None:
            return None
        others = [turn for turn in self._left if turn != self._turn]
        now = 0.0
        if self._turn in self._left and self._turn is not None:
            now = present if present is not None else max(0.0, known.get(self._turn.policy, usual) - spent)
        return now + sum(known.get(turn.policy, usual) for turn in others)
