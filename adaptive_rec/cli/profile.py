"""``profile``: what a data set's lookups are like, and what a hot tier of each size would catch of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.cli.parser import Parser
from adaptive_rec.errors import UsageError
from adaptive_rec.units import count, exact_size, percent, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.offline.profile.passes import Progress

EXAMPLES = """\
examples:
  adaptive-rec profile train.txt                         a Criteo TSV file (plain, .gz or .zst)
  adaptive-rec profile train.txt criteo_kaggle --samples 5000000
  adaptive-rec profile synthetic --set data.synthetic.drift_ranks=5 --out profile
"""
SHOWN_BUDGETS = 12


def add_commands(subparsers: Any) -> dict[str, Parser]:
    told = "skew, drift, and what a hot tier of each size would catch of a data set"
    parser: Parser = subparsers.add_parser("profile", help=told, epilog=EXAMPLES)
    parser.set_defaults(command=profile)
    add = parser.add_argument
    add("data", metavar="DATA", help="what data.source would be: a file, a folder made by data prepare, or synthetic")
    add("config", nargs="?", metavar="CONFIG", help="preset or TOML file (default: what train would take)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key of the configuration")
    add("--samples", metavar="N", default="0", help="look at the first N samples of the training range (default: all)")
    add("--windows", metavar="N", default="10", help="parts the samples are cut into to see drift (default: 10)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--out", metavar="DIR", type=Path, help="write profile.json and profile.html there")
    return {"profile": parser}


def profile(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    samples, windows = number("--samples", args.samples, 0), number("--windows", args.windows, 2)
    config = resolve(args)
    from adaptive_rec.offline.profile.measure import measure

    with progress_shown() as progress:
        measured = measure(config, samples, windows, progress)
    if args.out is not None:
        write(measured, args.out)
    if args.json:
        print_json(measured)
    else:
        show(*summary(measured))
        if args.out is not None:
            print(f"\n{args.out / 'profile.html'}")
    return 0


def resolve(args: argparse.Namespace) -> Config:
    """The configuration that `train --data DATA` would have, its samples in the order of the file."""
    from adaptive_rec.cli.train import preset_for
    from adaptive_rec.config.tree import load_config

    source = json.dumps(args.data, ensure_ascii=False)
    settings = [*args.set, f"data.source={source}", "data.shuffle=false", "data.epochs=1"]
    return load_config(args.config or preset_for(args.data), os.environ, settings)


def number(name: str, typed: str, low: int) -> int:
    if not (typed.isascii() and typed.isdecimal() and int(typed) >= low):
        raise UsageError(f"{name} must be a whole number from {low} on, got {typed}")
    return int(typed)


def write(measured: Mapping[str, Any], out: Path) -> None:
    """``profile.json`` and ``profile.html``. Raises UsageError where the folder cannot be written."""
    from adaptive_rec.offline.pages.page import write_page
    from adaptive_rec.offline.profile.profile_page import profile_page

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    write_page(json.dumps(measured, indent=1, allow_nan=False) + "\n", out / "profile.json")
    write_page(profile_page(measured), out / "profile.html")


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*shown, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("opening the data", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


# What is printed -----------------------------------------------------------------------------------------------------


def summary(measured: Mapping[str, Any]) -> list[Any]:
    blank = text("")
    return [
        pairs(head(measured)),
        blank,
        columns(
            ("table", "rows>", "seen>", "lookups>", "top 0.1%>", "1%>", "10%>", "first 1%, drifted>"), tables(measured)
        ),
        blank,
        columns(("hot budget>", "rows>", "hot lookups>", "popular samples>", ""), budgets(measured)),
        blank,
        columns(("window", "its own hot rows>", "those of the one before>", "those of the first>"), windows(measured)),
        blank,
        pairs(advice(measured)),
    ]


def head(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    data, every = measured["data"], measured["all"]
    cut = f" of {whole(data['train_samples'])}" if data["samples"] < data["train_samples"] else ""
    return [
        ("data", str(data["source"])),
        ("samples", f"{whole(data['samples'])}{cut}, {whole(data['lookups'])} lookups"),
        (
            "rows",
            f"{whole(every['seen_rows'])} looked up of {whole(every['rows'])} in {len(measured['tables'])} tables",
        ),
        ("row", " / ".join(f"{b} bytes" for b in data["row_bytes"]) + " on the device, optimizer state included"),
    ]


def tables(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """A line for each table, the last one for all together."""
    for table in [*measured["tables"], measured["all"]]:
        shares = [percent(table["top_ratios"][key]) for key in ("0.001", "0.01", "0.1")]
        stays = f"{percent(table['first_window_ratio'])} -> {percent(table['last_window_ratio'])}"
        numbers = [count(table[key]) for key in ("rows", "seen_rows", "lookups")]
        yield [table["name"], *numbers, *shares, stays]


def budgets(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """Some of the curve's points, with those that are suggested and configured."""
    named = {measured["suggested"]["bytes"]: "suggested", measured["configured"]["bytes"]: "configured"}
    points = measured["budgets"]
    plain = [point["bytes"] for point in points if point["bytes"] not in named]
    some = {*plain[:: max(1, len(plain) // SHOWN_BUDGETS)], points[-1]["bytes"]}
    for point in points:
        if point["bytes"] in named or point["bytes"] in some:
            shares = [percent(point[key]) for key in ("hot_lookup_ratio", "popular_sample_ratio")]
            yield [size(point["bytes"]), count(point["rows"]), *shares, named.get(point["bytes"], "")]


def windows(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    for place, window in enumerate(measured["drift"]["windows"], start=1):
        shares = [window[key] for key in ("own_ratio", "previous_ratio", "first_ratio")]
        yield [str(place), *("-" if share is None else percent(share) for share in shares)]


def advice(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    point = measured["suggested"]
    caught = point["previous_ratio"]
    return [
        ("suggested", f"--set knobs.hot_budget_bytes={exact_size(point['bytes'])}"),
        ("rule", point["rule"]),
        ("gives", f"{percent(point['hot_lookup_ratio'])} hot lookups, {percent(point['popular_sample_ratio'])} popular samples, "
                  f"were all counts known in advance"),
        ("drift", "" if caught is None else f"{percent(caught)} of a window's lookups are to what was hot in the one before"),
        ("note", point["note"]),
    ]  # fmt: skip
