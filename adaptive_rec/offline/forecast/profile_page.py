"""The page of a profile: the hot lookups at each budget, how lookups are distributed over rows, and how that drifts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.offline.advice import advice
from adaptive_rec.offline.pages.page import page
from adaptive_rec.offline.pages.plot import Plot, PlotLine, PlotMark
from adaptive_rec.offline.pages.scale import linear_scale, logarithmic, tick
from adaptive_rec.units import count, fine, percent, size, whole

MOST_TABLES = 64
"""The most tables that are drawn."""
LEAST_RATIO = 1e-4
"""Share of a table's rows at which its curve starts."""


def profile_page(measured: Mapping[str, Any]) -> str:
    """Return the page of what `measure` measured."""
    data = measured["data"]
    cut = f", the first of {whole(data['train_samples'])}" if data["samples"] < data["train_samples"] else ""
    all_rows = dict(advice(None, data["all_rows_bytes"], measured["everything_fits"]))["in all"]
    return page(
        "profile.html", f"Profile of {Path(data['source']).name}",
        f"{whole(data['samples'])} samples of the training range{cut}", measured=measured,
        all_rows=all_rows, plots=[_budgets(measured), _cdf(measured), _drift(measured)],
        curves=list(_curves(measured["tables"])), left_out=len(measured["tables"]) - MOST_TABLES,
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
        "budgets", "What a hot budget catches", "share", sizes, texts, "hot budget", x, linear_scale(0, 1, percent), lines,
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
        "cdf", "Lookups of the most frequent rows", "all tables together", rows, texts, "rows", x, linear_scale(0, 1, percent),
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
        linear_scale(1, max(2, len(windows)), lambda v: f"{v:g}", ticks=min(9, len(windows) - 1)),
        linear_scale(low, 1, percent), lines,
        group="windows", note=f"At {size(measured['drift']['budget_bytes'])}; "
        f"a window is {count(measured['drift']['samples_per_window'])} samples.",
    )  # fmt: skip


def _curves(tables: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
    """Yield a small curve for each table: share of lookups over share of its rows, the latter logarithmic."""
    drawn = sorted(range(len(tables)), key=lambda n: -tables[n]["lookups"])[:MOST_TABLES]
    for each in (tables[n] for n in sorted(drawn)):
        seen = each["seen_rows"]
        points = [(rows / seen, part) for rows, part in each["cdf"] if rows / seen >= LEAST_RATIO]
        about = f"{each['name']}: the top 1% of rows take {fine(each['top_ratios']['0.01'])} of the lookups"
        xs, parts = [x for x, _ in points], [part for _, part in points]
        yield Plot(
            "", each["name"], f"{count(seen)} rows", xs, [""] * len(xs), "rows", logarithmic(LEAST_RATIO, 1, percent),
            linear_scale(0, 1, percent), [PlotLine("lookups", "line-1", parts, "area", fine)], about=about,
        )  # fmt: skip
