"""The pages of a forecast: each policy's hot lookups at each budget and over the stream, as replayed; how lookups are distributed
over rows, and how that drifts, as measured by a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.offline.advice import advice
from adaptive_rec.offline.pages.page import page
from adaptive_rec.offline.pages.plot import Plot, PlotLine, PlotMark
from adaptive_rec.offline.pages.scale import Scale, Text, bounds, linear_scale, logarithmic, tick
from adaptive_rec.units import count, fine, percent, size, whole

COLORS = ("stage-1", "stage-4", "stage-6", "stage-3", "stage-7", "stage-5", "stage-2", "stage-8")
REPEATED = "dashed"
"""The look of lines whose colour another line has."""

Result = Mapping[str, Any]
Read = Callable[[Result], float | None]


def simulate_page(made: Mapping[str, Any]) -> str:
    """Return the page of what `simulate` replayed."""
    data = made["data"]
    curves = _curves(made)
    moving = {name: results for name, results in curves.items() if results[0]["follows_budget"]} or curves
    plots = [
        _over_budgets(made, moving, "hot", "Hot lookups", "share of all lookups", lambda r: r["hot_lookup_ratio"], True),
        _over_budgets(made, moving, "popular", "Popular samples", "share of all samples", lambda r: r["popular_sample_ratio"]),
        _over_budgets(made, curves, "link", "Bytes over the link", "a step, both ways", lambda r: r["link_bytes_per_step"]),
    ]  # fmt: skip
    if made["hardware"]:
        read: Read = lambda r: 1e3 * r["predicted_step_seconds"]  # noqa: E731 - reads like its neighbours
        plots.append(_over_budgets(made, curves, "step", "Predicted step", "ms", read))
    plots.append(_course(made, moving))
    return page(
        "simulate.html", f"Simulation of {Path(data['source']).name}",
        f"{whole(data['samples'])} samples replayed without training", made=made, best=_best(made["results"]),
        suggested=list(advice(made["suggested_bytes"] or None, data["all_rows_bytes"], made["everything_fits"])),
        above=_above(made["results"]), plots=plots, note=_not_drawn(curves), listed=list(_listed(made["results"])),
    )  # fmt: skip


def _best(results: Sequence[Result]) -> Result:
    """Return the result with the most hot lookups, if possible of those that a budget bounds and that know no future."""
    contenders = [result for result in results if result["follows_budget"] and result["policy"] != "oracle"]
    return max(contenders or results, key=lambda result: result["hot_lookup_ratio"])


def _above(results: Sequence[Result]) -> str:
    """Say why policies may be above the ceiling."""
    bounded = (one for one in results if one["above_ceiling"] and one["follows_budget"])
    return "; ".join(dict.fromkeys(f"{one['policy']}: {one['above_ceiling']}" for one in bounded))


def _listed(results: Sequence[Result]) -> Iterator[Result]:
    """Yield the results of the table: one only of a policy that ignores the budget."""
    seen = set()
    for one in results:
        if one["follows_budget"] or one["policy"] not in seen:
            yield one
        seen.add(one["policy"])


# Curves --------------------------------------------------------------------------------------------------------------


def _curves(made: Mapping[str, Any]) -> dict[str, list[Result]]:
    """Return each policy's results by rising budget. Policies with equal results share a curve, which has both names."""
    found: dict[str, list[Result]] = {}
    for name in dict.fromkeys(one["policy"] for one in made["results"]):
        results = sorted((r for r in made["results"] if r["policy"] == name), key=lambda r: r["budget_bytes"])
        same = next((other for other, others in found.items() if _equal(results, others)), None)
        if same is None:
            found[name] = results
        else:
            found[f"{same}, {name}"] = found.pop(same)
    return dict(sorted(found.items(), key=lambda each: not each[1][0]["follows_budget"]))


def _equal(one: Sequence[Result], other: Sequence[Result]) -> bool:
    keys = ("counts", "predicted_step_seconds", "course")
    return all(a[key] == b[key] for a, b in zip(one, other, strict=True) for key in keys)


def _not_drawn(curves: Mapping[str, list[Result]]) -> str:
    """Name the policies that have no curve of their own, and the reason."""
    shared = [name for name in curves if "," in name]
    flat = [
        f"{name} ({fine(r[0]['hot_lookup_ratio'])} hot)" for name, r in curves.items() if not r[0]["follows_budget"]
    ]
    said = [f"Equal throughout, so drawn as one: {'; '.join(shared)}."] if shared else []
    return " ".join([*said, f"Whatever the budget: {'; '.join(flat)}."] if flat else said)


def _lines(
    curves: Mapping[str, list[Result]], values: Callable[[list[Result]], Any], text: Text, look: str = "both"
) -> list[PlotLine]:
    lines = []
    for place, (name, results) in enumerate(curves.items()):
        again = place >= len(COLORS)
        lines.append(PlotLine(name, COLORS[place % len(COLORS)], values(results), REPEATED if again else look, text))
    return lines


def _over_budgets(
    made: Mapping[str, Any], curves: Mapping[str, list[Result]], name: str, title: str, unit: str, read: Read,
    ceiling: bool = False,
) -> Plot:  # fmt: skip
    budgets = made["budgets"]
    text: Text = {"link": size, "step": lambda v: f"{v:.2f}"}.get(name, fine)
    lines = _lines(curves, lambda results: [read(one) for one in results], text)
    if ceiling:
        lines.append(PlotLine("ceiling", "muted", made["ceiling"], REPEATED, text))
    marks = [
        PlotMark(made[f"{kind}_bytes"], kind, f"{kind}: {size(made[f'{kind}_bytes'])}")
        for kind in ("configured", "suggested")
    ]
    return Plot(
        name, title, unit, budgets, [size(budget) for budget in budgets], "hot budget",
        logarithmic(max(1, budgets[0]), max(2, budgets[-1]), size, base=2, most=5), _upwards(name, lines), lines,
        marks=[mark for mark in marks if budgets[0] <= mark.at <= budgets[-1]], group="budgets", wide=ceiling,
    )  # fmt: skip


def _upwards(name: str, lines: Sequence[PlotLine]) -> Scale:
    values = [value for line in lines for value in line.known]
    if name == "link":
        return linear_scale(0.0, max(values, default=1.0) or 1.0, size, binary=True)
    if name == "step":
        return linear_scale(*bounds(*(line.values for line in lines)), lambda v: f"{v:g}")
    return linear_scale(0, 1, percent)


def _course(made: Mapping[str, Any], curves: Mapping[str, list[Result]]) -> Plot:
    """Return the shares of hot lookups over the stream, at the configured budget or at the middle one."""
    budgets = made["budgets"]
    place = budgets.index(made["configured_bytes"]) if made["configured_bytes"] in budgets else len(budgets) // 2
    longest = max((results[place]["course"] for results in curves.values()), key=len)
    samples = [point[0] for point in longest]
    lines = _lines(
        curves,
        lambda results: [part[1] for part in results[place]["course"]] + [None] * (len(samples) - len(results[place]["course"])),
        fine,
        "line",
    )  # fmt: skip
    return Plot(
        "course", "Hot lookups over the stream", f"share, at {size(budgets[place])}", samples,
        [f"{count(done)} samples" for done in samples], "samples", linear_scale(0.0, max(samples, default=1), tick, ticks=5),
        linear_scale(0, 1, percent), lines, group="course", wide=True,
        note="Policies that arrange the stream train its samples in an order of their own.",
    )  # fmt: skip


# Profile --------------------------------------------------------------------------------------------------------------


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
        curves=list(_table_curves(measured["tables"])), left_out=len(measured["tables"]) - MOST_TABLES,
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


def _table_curves(tables: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
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
