"""What a person sees of a run: a header, progress while it trains, a summary. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from adaptive_rec.telemetry import Snapshot, ratio

if TYPE_CHECKING:
    from adaptive_rec.evaluate import Evaluation
    from adaptive_rec.runtime import Runtime

MAX_WIDTH = 100
PLAIN_EVERY_SECONDS = 5.0
REFRESHES_PER_SECOND = 5
"""Each takes about 2 ms from training on a machine with few cores."""
SMOOTHING = 0.3
"""Weight of the newest snapshot in the figures shown."""
BAR_CELLS = 24
COMPILING = "compiling kernels (first run only)"


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
        interactive = stream.isatty()
        self.console = Console(
            file=stream,
            highlight=False,
            emoji=False,
            soft_wrap=not interactive,
            width=None if interactive else MAX_WIDTH,
        )
        self.live: Live | None = None
        if interactive and not self.console.is_dumb_terminal:
            self.live = Live(
                console=self.console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
            )

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
        """Print the header, then wait for the first step."""
        self._say(header(runtime), markup=True)
        if runtime.step_number:
            left = runtime.steps_total - runtime.step_number
            what = f"{whole(left)} to go" if left > 0 else "nothing left to train, give more steps"
            self._say(f"going on from step {whole(runtime.step_number)}: {what}")
        self.status("first step")
        self._runtime = runtime

    def show(self, event: Snapshot | Evaluation) -> None:
        """A snapshot moves the figures; an evaluation stands as a line of its own."""
        if not isinstance(event, Snapshot):
            quality = event.quality
            self._say(
                f"step {whole(event.step)}   {quality_text(vars(quality))}   on {count(quality.samples)} held-out samples"
            )
            return
        self.pace.follow(event)
        last = event.step >= event.steps_total
        if self.live is None and (last or time.monotonic() - self._said_at >= PLAIN_EVERY_SECONDS):
            self._said_at = time.monotonic()
            done = f"step {whole(event.step)} of {whole(event.steps_total)} ({percent(ratio(event.step, event.steps_total))})"
            self._say("   ".join([done, *self._figures(), self.pace.time_left(event.step)]).rstrip())

    def stopping(self) -> None:
        """The user asked to stop."""
        self._stopping = True

    def _say(self, text: str, markup: bool = False) -> None:
        self.console.print(text, markup=markup)
        if self.live is None:
            self.console.file.flush()

    def _render(self) -> RenderableType:
        runtime, pace = self._runtime, self.pace
        if runtime is None or not pace.known:
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
        pace, runtime = self.pace, self._runtime
        figures = [
            f"{count(pace.samples_per_second)} samples/s",
            f"loss {pace.loss:.4f}",
            f"hot lookups {percent(pace.hot)}",
        ]
        if runtime is None or not runtime.policy.exact:
            freeze = runtime is None or runtime.knobs.action == "freeze"
            share, of_what = (pace.skipped_updates, "row updates") if freeze else (pace.skipped_samples, "samples")
            figures.append(f"skipped {percent(share)} of {of_what}")
        return figures

    # At the end ------------------------------------------------------------------------------------------------------

    def summary(self, summary: Mapping[str, Any], out: Path) -> None:
        """What the run came to, and where it is."""
        table = Table.grid(padding=(0, 3))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in summary_lines(summary):
            table.add_row(label, value)
        table.add_row("run directory", Text(str(out), style="bold"))
        self.console.print()
        self.console.print(table, soft_wrap=False, width=min(self.console.width, MAX_WIDTH))


class Pace:
    """Smoothed figures of the last snapshots; the first one, which includes compiling, is forgotten at the second."""

    def __init__(self) -> None:
        self.samples_per_second = self.loss = self.hot = self.skipped_updates = self.skipped_samples = 0.0
        self._seconds_per_step = 0.0
        self._total = 0
        self._seen = 0
        self._last = (0, 0.0)

    @property
    def known(self) -> bool:
        return self._seen > 0

    def follow(self, snapshot: Snapshot) -> None:
        if snapshot.samples_per_second == 0:
            return  # nothing since the one before
        self._seen += 1
        newest = {
            "samples_per_second": snapshot.samples_per_second,
            "loss": snapshot.loss,
            "hot": snapshot.hot_lookup_ratio,
            "skipped_updates": snapshot.skipped_row_update_ratio,
            "skipped_samples": snapshot.skipped_sample_ratio,
        }
        if self._seen > 1 and snapshot.step > self._last[0]:
            newest["_seconds_per_step"] = (snapshot.seconds - self._last[1]) / (snapshot.step - self._last[0])
        weight = 1.0 if self._seen <= 2 else max(SMOOTHING, 1 / (self._seen - 1))
        for name, value in newest.items():
            setattr(self, name, (1 - weight) * getattr(self, name) + weight * value)
        self._last, self._total = (snapshot.step, snapshot.seconds), snapshot.steps_total

    def time_left(self, step: int) -> str:
        """Rough time to the end of the run, blank as long as it cannot be told."""
        return f"{clock((self._total - step) * self._seconds_per_step)} left" if self._seconds_per_step else ""


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


# Text ----------------------------------------------------------------------------------------------------------------


def header(runtime: Runtime) -> str:
    """Policy, device, tables and budget in one line."""
    space, config = runtime.store.space, runtime.config
    dims = "/".join(str(dim) for dim in sorted({table.dim for table in space.tables}))
    table_bytes = sum(table.rows * table.dim for table in space.tables) * (
        8 if config.run.precision == "float64" else 4
    )
    parts = [
        f"[bold]{escape(config.policy.name)}[/] on {runtime.device}",
        f"{len(space.tables)} tables, {count(space.rows)} rows x {dims}, {size(table_bytes)}",
        f"hot tier {size(runtime.store.device_bytes)}",
        f"batch {whole(config.run.batch_size)}",
    ]
    return " · ".join(parts)


def summary_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    """The summary as pairs of label and value."""
    seen, trained, quality = summary["samples_seen"], summary["samples_trained"], summary["eval"]
    action = f" ({summary['action']})" if summary["action"] else ""
    yield (
        "policy",
        Text(f"{summary['policy']}{action}, seed {summary['seed']}, {summary['device']}, {summary['precision']}"),
    )
    yield (
        "quality",
        Text(f"{quality_text(quality)}   on {count(quality['samples'])} held-out samples", style="bold green"),
    )
    yield "trained", f"{count(trained)} of {count(seen)} samples seen, {whole(summary['steps'])} steps"
    yield "speed", f"{count(summary['samples_per_second'])} samples/s, {clock(summary['seconds'])}"
    popular = percent(summary["popular_sample_ratio"])
    yield (
        "hot",
        f"{percent(summary['hot_lookup_ratio'])} of lookups, {popular} of samples are popular (every lookup hot)",
    )
    if summary["action"]:
        updates = summary["row_updates"] + summary["row_updates_skipped"]
        of_updates = percent(ratio(summary["row_updates_skipped"], updates))
        yield "skipped", f"{of_updates} of row updates, {percent(ratio(seen - trained, seen))} of samples"
    rows = summary["total_rows"]
    hot, stale = summary["hot_rows"], summary["stale_rows"]
    yield (
        "rows",
        f"{count(hot)} hot ({percent(ratio(hot, rows))} of {count(rows)}), {count(stale)} of them stale at the end",
    )
    moved = f"{size(summary['host_to_device_bytes'])} to the device, {size(summary['device_to_host_bytes'])} back"
    yield "moved", f"{moved}, {count(summary['migrated_rows'])} rows changed tier"
    yield "memory", f"{size(summary['peak_rss_bytes'])} peak, hot tier {size(summary['device_tier_bytes'])}"
    if summary["malformed_rows"]:
        yield "malformed", f"{whole(summary['malformed_rows'])} rows left out"
    yield "time", breakdown(summary["seconds_by_stage"], summary["seconds"])


def breakdown(stages: Mapping[str, float], seconds: float) -> Table:
    """Where the loop's time went; stages that ran ahead on the worker took none of it."""
    table = Table.grid(padding=(0, 2))
    own = {name: value for name, value in stages.items() if not name.endswith("(ahead)")}
    own["other"] = max(0.0, seconds - sum(own.values()))
    for name, value in sorted(own.items(), key=lambda item: -item[1]):
        share = ratio(value, seconds)
        if share >= 0.005:
            bar = "█" * round(share * BAR_CELLS) or "▏"
            table.add_row(name, Text(percent(share), justify="right"), Text(bar, style="cyan"))
    return table


def quality_text(quality: Mapping[str, Any]) -> str:
    return f"AUC {quality['auc']:.4f}   logloss {quality['logloss']:.4f}   calibration {quality['calibration']:.3f}"


def whole(number: float) -> str:
    return f"{number:,.0f}"


def percent(share: float) -> str:
    """Whole percents, one decimal where there are few."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def count(number: float) -> str:
    """1234567 -> 1.2 M."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= limit:
            return f"{number / (1e3 if suffix == ' k' else limit):.1f}{suffix}"
    return f"{number:,.0f}"


def size(size_bytes: float) -> str:
    """35651584 -> 34 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.1f} {unit}" if size_bytes < 10 and unit != "B" else f"{size_bytes:,.0f} {unit}"


def clock(seconds: float) -> str:
    """75 -> 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}" if minutes else f"{rest} s"
