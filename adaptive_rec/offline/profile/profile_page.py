"""The page of a profile: the hot lookups at each budget, how lookups are distributed over rows, and how that drifts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from adaptive_rec.offline.advice import advice
from adaptive_rec.offline.pages.markup import tag
from adaptive_rec.offline.pages.page import facts, page, section, table, tiles, warnings
from adaptive_rec.offline.pages.plot import SIDE, Plot, PlotLine, PlotMark, canvas, charts, mark_key
from adaptive_rec.offline.pages.scale import linear, logarithmic, tick
from adaptive_rec.units import count, exact_size, fine, percent, size, whole

MOST_TABLES = 64
"""The most tables that are drawn."""
TOP_HEADS = {"0.001": "top 0.1%>", "0.01": "top 1%>", "0.1": "top 10%>"}
ADMISSION_NOTE = "Ids that are looked up at least so often, and the lookups from that one on, were there room for all of them."
LEAST_RATIO = 1e-4
"""Share of a table's rows at which its curve starts."""


def profile_page(measured: Mapping[str, Any]) -> str:
    """Return the page of what `measure` measured."""
    data = measured["data"]
    cut = f", the first of {whole(data['train_samples'])}" if data["samples"] < data["train_samples"] else ""
    subtitle = f"{whole(data['samples'])} samples of the training range{cut}"
    note = measured["suggested"]["note"]
    key = mark_key({kind: f"{kind} budget" for kind in ("suggested", "configured")})
    drawn = charts(_budgets(measured), _cdf(measured), _drift(measured))
    return page(
        f"Profile of {Path(data['source']).name}", subtitle, None,
        warnings([note] if note else []),
        section("Result", _tiles(measured), _facts(measured)),
        section("Over budgets and windows", key, drawn),
        *([section("Raw ids", _admission(measured), note=ADMISSION_NOTE)] if measured["admission"] else []),
        section("Each table", _small_curves(measured["tables"]), _tables(measured), note=_tables_note(measured)),
    )  # fmt: skip


def _tiles(measured: Mapping[str, Any]) -> Markup:
    data, every, point, now = (measured[key] for key in ("data", "all", "suggested", "configured"))
    caught = point["previous_ratio"]
    return tiles(
        ("Lookups", count(data["lookups"]), f"{count(data['samples'])} samples"),
        ("Rows looked up", count(every["seen_rows"]), f"of {count(every['rows'])}; {count(every['once_rows'])} once only"),
        ("Top 1% of rows", fine(every["top_ratios"]["0.01"]), "of the lookups"),
        ("Drift", "–" if caught is None else fine(caught), "caught by hot rows of a window ago"),
        ("Suggested budget", size(point["bytes"]), f"{count(point['rows'])} rows"),
        ("Hot lookups there", fine(point["hot_lookup_ratio"]), "counts known in advance"),
        ("Popular samples there", fine(point["popular_sample_ratio"]), "every lookup hot"),
        ("Configured budget", size(now["bytes"]), f"{fine(now['hot_lookup_ratio'])} hot lookups"),
    )  # fmt: skip


def _facts(measured: Mapping[str, Any]) -> Markup:
    data, point = measured["data"], measured["suggested"]
    row = " / ".join(f"{each} bytes" for each in data["row_bytes"])
    return facts(
        ("Data", str(data["source"])),
        ("A hot row", f"{row}: weights, state of {data['embedding_rule']}, records of {data['policy']}"),
        ("Suggested", tag("code", f"--set knobs.hot_budget_bytes={exact_size(point['bytes'])}")),
        ("Rule", point["rule"]),
        ("All rows", dict(advice(None, data["all_rows_bytes"], measured["everything_fits"]))["in all"]),
        ("Malformed rows", whole(data["malformed_rows"]) if data["malformed_rows"] else None),
        ("Measured in", f"{measured['seconds']:.1f} s, {count(measured['lookups_per_second'])} lookups/s over two passes"),
    )  # fmt: skip


def _budgets(measured: Mapping[str, Any]) -> Plot:
    points = measured["budgets"]
    sizes = [point["bytes"] for point in points]
    lines = [
        PlotLine("hot lookups", "hot", [point["hot_lookup_ratio"] for point in points], text=fine),
        PlotLine("popular samples", "line-1", [point["popular_sample_ratio"] for point in points], text=fine),
    ]
    marks = [
        PlotMark(measured[kind]["bytes"], kind, f"{kind}: {size(measured[kind]['bytes'])}")
        for kind in ("configured", "suggested")
        if measured[kind]["bytes"]
    ]
    x = logarithmic(sizes[0], sizes[-1], size, base=2, most=8)
    texts = [f"{size(point['bytes'])}, {count(point['rows'])} rows" for point in points]
    return Plot(
        "budgets", "What a hot budget catches", "share", sizes, texts, "hot budget", x, linear(0, 1, percent), lines,
        marks=marks, group="budgets", wide=True,
        note="Rows ranked over all tables by their lookups in all samples, which a run has yet to learn.",
    )  # fmt: skip


def _cdf(measured: Mapping[str, Any]) -> Plot:
    every = measured["all"]
    rows = [point[0] for point in every["cdf"]]
    line = PlotLine("lookups", "line-1", [point[1] for point in every["cdf"]], text=fine)
    x = logarithmic(1, max(rows, default=1), tick)
    texts = [f"{count(n)} rows ({fine(n / every['seen_rows'])})" for n in rows]
    return Plot(
        "cdf", "Lookups of the most frequent rows", "all tables together", rows, texts, "rows", x, linear(0, 1, percent),
        [line], group="cdf",
    )  # fmt: skip


def _drift(measured: Mapping[str, Any]) -> Plot:
    windows = measured["drift"]["windows"]
    names = {
        "own_ratio": ("its own", "hot"),
        "previous_ratio": ("the one before", "line-1"),
        "first_ratio": ("the first", "cold"),
    }
    lines = [PlotLine(label, color, [w[key] for w in windows], text=fine) for key, (label, color) in names.items()]
    known = [value for line in lines for value in line.known]
    low = max(0.0, math.floor(10 * min(known, default=0.0) - 0.5) / 10)
    numbers = list(range(1, len(windows) + 1))
    return Plot(
        "drift", "Drift", "lookups of a window to the hot rows of …", numbers, [f"window {n}" for n in numbers], "window",
        linear(1, max(2, len(windows)), lambda v: f"{v:g}", ticks=min(9, len(windows) - 1)), linear(low, 1, percent), lines,
        group="windows", note=f"At {size(measured['drift']['budget_bytes'])}; "
        f"a window is {count(measured['drift']['samples_per_window'])} samples.",
    )  # fmt: skip


# Tables --------------------------------------------------------------------------------------------------------------


def _small_curves(tables: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a small curve for each table: share of lookups over share of its rows, the latter logarithmic."""
    x = logarithmic(LEAST_RATIO, 1, percent)
    drawn = sorted(range(len(tables)), key=lambda n: -tables[n]["lookups"])[:MOST_TABLES]
    cells = []
    for each in (tables[n] for n in sorted(drawn)):
        seen = each["seen_rows"]
        points = [
            f"{x.place(rows / seen) * SIDE:.0f} {(1 - part) * SIDE:.0f}"
            for rows, part in each["cdf"]
            if rows / seen >= LEAST_RATIO
        ]
        line = "M" + "L".join(points) if points else ""
        under = f"{line}V{SIDE}H{points[0].split()[0]}z" if points else ""
        curve = canvas(tag("path", d=under, class_="layer"), tag("path", d=line, class_="line"))
        about = f"{each['name']}: the top 1% of rows take {fine(each['top_ratios']['0.01'])} of the lookups"
        rows = tag("span", f" {count(seen)} rows", class_="muted")
        caption = tag("figcaption", tag("b", each["name"], title=each["name"]), rows)
        picture = tag("div", curve, class_="small", role="img", aria_label=about)
        cells.append(tag("figure", caption, picture, class_="card multiple"))
    return tag("div", *cells, class_="multiples")


def _admission(measured: Mapping[str, Any]) -> Markup:
    heads = ("admit_after>", "ids with a row of their own>", "lookups of these rows>", "tables without room for all>")
    rows = [
        (str(each["admit_after"]), whole(each["rows"]), fine(each["own_lookup_ratio"]), str(each["full_tables"]))
        for each in measured["admission"]
    ]
    return table(heads, rows)


def _tables_note(measured: Mapping[str, Any]) -> str:
    left_out = len(measured["tables"]) - MOST_TABLES
    some = f" The {MOST_TABLES} tables with the most lookups are drawn." if left_out > 0 else ""
    return f"Share of the lookups (upwards) over share of the rows seen (0.01% to 100%, logarithmic).{some}"


def _tables(measured: Mapping[str, Any]) -> Markup:
    heads = (
        "table",
        "rows>",
        "dim>",
        "seen>",
        "seen once>",
        "lookups>",
        *TOP_HEADS.values(),
        "first 1%, at first>",
        "at last>",
    )
    rows = []
    for each in [*measured["tables"], measured["all"]]:
        counts = [whole(each[key]) for key in ("seen_rows", "once_rows", "lookups")]
        tops = [fine(each["top_ratios"][key]) for key in TOP_HEADS]
        stays = [fine(each[key]) for key in ("first_window_ratio", "last_window_ratio")]
        rows.append((each["name"], whole(each["rows"]), str(each.get("dim", "")), *counts, *tops, *stays))
    said = (
        "Top shares are of the rows seen, at least one row. "
        "First 1%: the first window's most frequent rows, in the first and in the last window."
    )
    return table(heads, rows, said)
