"""``profile``: the lookups of a data set, and the share of them that a hot tier of each size would catch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.forecast import answer, is_other_data
from adaptive_rec.cli.output import columns, pairs, text, waiting
from adaptive_rec.cli.own_data import with_prepared_data
from adaptive_rec.cli.parser import (
    CONFIG_HELP,
    DATA_HELP,
    add_command,
    add_schema_options,
    add_settings,
    configuration,
    text_settings,
    whole_number,
)
from adaptive_rec.run.new_directory import RUNS
from adaptive_rec.units import count, counted, fine, percent, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config

EXAMPLES = """\
examples:
  adaptive-rec profile clicks.csv --label clicked        your own CSV, TSV or Parquet file
  adaptive-rec profile train.txt                         a Criteo TSV file (plain, .gz or .zst)
  adaptive-rec profile train.txt criteo_kaggle --samples 5000000
  adaptive-rec profile synthetic --set data.synthetic.drift_ranks=5 --out profile
"""
SHOWN_BUDGETS = 12


def add_commands(subparsers: Any) -> None:
    purpose = "measure skew and drift of a data set, and the hit rate by size of the hot tier"
    parser = add_command(subparsers, "profile", profile, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("data", metavar="DATA", help=DATA_HELP)
    add_schema_options(parser)
    add("config", nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    add_settings(parser)
    add("--samples", metavar="N", default="0", help="only the first N samples of the training range (default: all)")
    add("--windows", metavar="N", default="10", help="parts of the samples, compared to show drift (default: 10)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--out", metavar="DIR", type=Path, help="write profile.json and profile.html there")


def profile(args: argparse.Namespace) -> int:
    """Measure, print and write the profile; samples keep the order of the file."""
    waiting(f"opening {args.data}")
    samples, windows = whole_number("--samples", args.samples, 0), whole_number("--windows", args.windows, 2)
    ready, config = with_prepared_data(args, resolve_profile, RUNS, sys.stderr if args.json else sys.stdout)
    from adaptive_rec.cli.progress import progress_shown
    from adaptive_rec.offline.forecast.profile import measure

    with progress_shown() as progress:
        measured = measure(config, samples, windows, progress)
    answer(args, "profile", measured, summary, profile_page_of, is_other_data(ready, args))
    return 0


def resolve_profile(args: argparse.Namespace) -> Config:
    settings = [*args.set, *text_settings({"data.source": args.data}), "data.shuffle=false", "data.epochs=1"]
    return configuration(args.config, args.data, settings)


def profile_page_of(measured: Mapping[str, Any]) -> str:
    from adaptive_rec.offline.forecast.pages import profile_page

    return profile_page(measured)


# What is printed -----------------------------------------------------------------------------------------------------


def summary(measured: Mapping[str, Any]) -> list[Any]:
    blank = text("")
    per_table = ("table", "rows>", "seen>", "lookups>", "top 0.1%>", "1%>", "10%>", "first 1%, drifted>")
    per_budget = ("hot budget>", "rows>", "hot lookups>", "popular samples>", "")
    per_window = ("window", "its own hot rows>", "those of the one before>", "those of the first>")
    per_value = ("admit_after", "ids with a row>", "lookups of these rows>", "")
    return [
        pairs(head(measured)), blank, columns(per_table, tables(measured)), blank,
        columns(per_budget, budgets(measured)), blank, columns(per_window, windows(measured)), blank,
        *([columns(per_value, admissions(measured)), blank] if measured["admission"] else []),
        pairs(conclusion(measured)),
    ]  # fmt: skip


def head(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    data, every = measured["data"], measured["all"]
    cut = f" of {whole(data['train_samples'])}" if data["samples"] < data["train_samples"] else ""
    tables = counted(len(measured["tables"]), "table")
    return [
        ("data", str(data["source"])),
        ("samples", f"{whole(data['samples'])}{cut}, {whole(data['lookups'])} lookups"),
        ("rows", f"{whole(every['seen_rows'])} of {whole(every['rows'])} looked up, in {tables}"),
        ("row", " / ".join(f"{b} bytes" for b in data["row_bytes"]) + " on the device, optimizer state included"),
    ]


def tables(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a line for each table, then one for all of them."""
    for table in [*measured["tables"], measured["all"]]:
        shares = [percent(table["top_ratios"][key]) for key in ("0.001", "0.01", "0.1")]
        stays = f"{percent(table['first_window_ratio'])} -> {percent(table['last_window_ratio'])}"
        numbers = [count(table[key]) for key in ("rows", "seen_rows", "lookups")]
        yield [table["name"], *numbers, *shares, stays]


def budgets(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield some points of the curve, always with the suggested and the configured one."""
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


def admissions(measured: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield how many raw ids would get a row of their own with each value of the knob, were there room for all."""
    for each in measured["admission"]:
        full = each["full_tables"]
        note = f"more than there are in {counted(full, 'table')}" if full else ""
        yield [str(each["admit_after"]), whole(each["rows"]), fine(each["own_lookup_ratio"]), note]


def conclusion(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    from adaptive_rec.offline.advice import advice, movement_note

    data, point = measured["data"], measured["suggested"]
    caught = point["previous_ratio"]
    row, plain = sum(data["row_bytes"]), sum(data["plain_row_bytes"])
    return [
        *advice(point["bytes"], data["all_rows_bytes"], measured["everything_fits"]),
        ("gives", f"{percent(point['hot_lookup_ratio'])} hot lookups, {percent(point['popular_sample_ratio'])} popular samples, "
                  f"if all counts were known in advance"),
        ("drift", "" if caught is None else f"{percent(caught)} of a window's lookups go to the hot rows of the window before"),
        ("note", point["note"]),
        ("note", movement_note(data["policy"], row, plain)),
    ]  # fmt: skip
