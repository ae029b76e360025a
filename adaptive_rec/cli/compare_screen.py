"""The screen of a comparison: progress of its runs, then the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptive_rec.cli.output import columns, show
from adaptive_rec.cli.progress import MAX_WIDTH, Display
from adaptive_rec.offline.compare.headline import headline
from adaptive_rec.offline.compare.measures import in_windows
from adaptive_rec.offline.compare.plan import Turn
from adaptive_rec.offline.compare.processes import ProcessEnd, RunProgress
from adaptive_rec.offline.compare.statements import disturbed, statements, uneven
from adaptive_rec.offline.compare.statistics import LEAST_SEEDS
from adaptive_rec.offline.compare.tables import (
    WORK_HEADS,
    Results,
    failures,
    quality_heads,
    quality_rows,
    ranked_heads,
    ranked_rows,
    work_rows,
)
from adaptive_rec.units import clock, count, printable


class Board(Display):
    """Progress over the missing runs: one changing line on a terminal, a line per run in a log."""

    def __init__(self, turns: list[Turn], made: int, to_stderr: bool = False) -> None:
        super().__init__(sys.stderr if to_stderr else sys.stdout, auto_refresh=False)
        self._left = turns
        self._made, self._total = made, made + len(turns)
        self._turn: Turn | None = None
        self._progress: RunProgress | None = None
        self._started = 0.0
        self._lasted: dict[str, list[float]] = {}
        """Seconds of each run that ended here, by policy."""

    def begin(self, turn: Turn) -> None:
        self._turn, self._started = turn, time.monotonic()
        self.watch(None)

    def watch(self, progress: RunProgress | None) -> None:
        """Show the progress of the present run, on a terminal only; a log reports each run at its end."""
        self._progress = progress
        if self.live is not None:
            self.live.refresh()

    def end(self, turn: Turn, outcome: ProcessEnd, figures: dict[str, Any] | None) -> None:
        """Print the result of a run."""
        self._left = [other for other in self._left if other != turn]
        self._made += 1
        self._lasted.setdefault(turn.policy, []).append(time.monotonic() - self._started)
        where = f"run {self._made} of {self._total}"
        if figures is None:
            result = f"failed: {outcome.why}"
        else:
            quality = "not scored" if figures["auc"] is None else f"AUC {figures['auc']:.4f}"
            result = f"{figures['seconds']:.1f} s, {count(figures['samples_per_second'])} samples/s, {quality}"
        left = self._seconds_left()
        rest = f"   {clock(left)} left" if left and self._left else ""
        self.note(printable(f"{where}   seed {turn.seed}   {turn.policy:<{self._width}}   {result}{rest}"))

    @property
    def _width(self) -> int:
        return max((len(name) for name in (*self._lasted, *(turn.policy for turn in self._left))), default=0)

    def render(self) -> RenderableType:
        turn, progress = self._turn, self._progress
        if turn is None:
            return Text()
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
        """Estimate the time left for all runs from the finished ones; None before there is an estimate."""
        spent = time.monotonic() - self._started
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


def show_comparison(results: Results, files: Sequence[Path]) -> None:
    """Print the tables, the statements about them, and the files that hold all results."""
    parts: list[Any] = [""]
    if results["runs"]:
        ranked = [columns(heads, ranked_rows(results)), ""] if (heads := ranked_heads(results)) else []
        parts += [columns(quality_heads(results), quality_rows(results)), "", *ranked]
        parts += [columns(WORK_HEADS, work_rows(results)), ""]
        parts += [*(Text(printable(line), style="dim") for line in (_key(results), *uneven(results), *disturbed(results))), ""]
    parts += [Text(printable(line), style="bold") for line in headline(results)]
    for policy, statement in statements(results, spans=False).items():
        parts += [Text(printable(policy)), Padding(Text(printable(statement), style="dim"), (0, 0, 0, 2))]
    failed = list(failures(results, files[0].parent))
    if failed:
        parts += ["", Text("failed", style="bold red"), *(Text(printable(each)) for each in failed)]
    parts += ["", *(Text(printable(str(file))) for file in files)]
    show(Group(*parts))


def _key(results: Results) -> str:
    parts = [f"against {results['baseline']}"]
    if any(each["seconds"]["low"] is not None for each in results["over_seeds"].values() if each["runs"]):
        parts.append("± half a 95 % interval over the seeds, * differs beyond noise, ? perhaps")
    else:
        parts.append(f"fewer than {LEAST_SEEDS} seeds, so no intervals")
    if in_windows(results):
        parts.append("AUC and log loss of each window before training on it, over all windows and of the last one")
    else:
        parts.append(f"AUC reached: when a run first had {results['baseline']}'s final AUC")
    return "; ".join(parts) + "."
