"""The page of a replay: what each policy catches at each budget, what travels for it, and how that goes over the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive_rec.offline.report.markup import Markup, tag
from adaptive_rec.offline.report.page import facts, grid, page, section, table, tile
from adaptive_rec.offline.report.plot import EventMark, Figure, PlotLine
from adaptive_rec.offline.report.run_figures import bounds, tick
from adaptive_rec.offline.report.scale import Scale, Text, linear, logarithmic
from adaptive_rec.units import count, fine, percent, size, whole

COLORS = ("stage-1", "stage-4", "stage-6", "stage-3", "stage-7", "stage-5", "stage-2", "stage-8")
AGAIN = "dashed"
"""How a line looks whose colour has been used before."""

Result = Mapping[str, Any]
Read = Callable[[Result], float | None]


def simulate_page(made: Mapping[str, Any]) -> str:
    """The page of what `adaptive_rec.offline.simulate.results.simulate` came to."""
    data = made["data"]
    curves = _curves(made)
    moving = {name: results for name, results in curves.items() if results[0]["follows_budget"]} or curves
    figures = [
        _over_budgets(made, moving, "hot", "Hot lookups", "share of all lookups", lambda r: r["hot_lookup_ratio"], True),
        _over_budgets(made, moving, "popular", "Popular samples", "share of all samples", lambda r: r["popular_sample_ratio"]),
        _over_budgets(made, curves, "link", "Bytes over the link", "a step, both ways", lambda r: r["link_bytes_per_step"]),
    ]  # fmt: skip
    if made["hardware"]:
        read: Read = lambda r: 1e3 * r["predicted_step_seconds"]  # noqa: E731 - reads like its neighbours
        figures.append(_over_budgets(made, curves, "step", "Predicted step", "ms", read))
    figures.append(_course(made, moving))
    parts = [
        section("Result", _tiles(made), _facts(made)),
        section("Over budgets, and over the stream", grid(*(figure.html() for figure in figures)), note=_alike(curves)),
        section("All figures", _table(made)),
    ]
    subtitle = f"{whole(data['samples'])} samples replayed without training"
    return page(f"Simulation of {Path(data['source']).name}", subtitle, None, *parts)


def _tiles(made: Mapping[str, Any]) -> Markup:
    data = made["data"]
    contenders = [result for result in made["results"] if result["follows_budget"] and result["policy"] != "oracle"]
    best = max(contenders or made["results"], key=lambda result: result["hot_lookup_ratio"])
    return tag(
        "div",
        tile("Lookups", count(data["lookups"]), f"{whole(data['steps'])} steps of {whole(data['batch_size'])}"),
        tile("Rows", count(data["rows"]), f"{size(data['all_rows_bytes'])} with optimizer state"),
        tile("Ceiling", fine(made["ceiling"][-1]), f"hot at {size(made['budgets'][-1])}, future known"),
        tile("Most hot lookups", fine(best["hot_lookup_ratio"]), f"{best['policy']} at {size(best['budget_bytes'])}"),
        tile("Window", whole(made["window_steps"]), "steps"),
        tile("Replayed in", f"{made['seconds']:.1f} s", f"{len(made['budgets'])} budgets"),
        class_="summary",
    )


def _facts(made: Mapping[str, Any]) -> Markup:
    data, hardware = made["data"], made["hardware"]
    rows = " / ".join(f"{each} bytes" for each in data["row_bytes"])
    listed = facts(
        [
            ("Data", str(data["source"])),
            ("Seed", str(data["seed"])),
            ("A hot row", f"{rows}, more where a policy records movement"),
            ("Ceiling", f"the best rows of each {made['window_steps']} steps, by counts of these very steps, in bytes that all "
                        "tables share. A policy whose rows change more often may be above it."),
            ("Not simulated", "what a policy skips, which depends on training: all samples are taken"),
            ("Step predicted for", hardware["name"] if hardware else None),
            ("Note", hardware["note"] if hardware else None),
        ]
    )  # fmt: skip
    return tag("div", listed, class_="card facts-card")


# Curves --------------------------------------------------------------------------------------------------------------


def _curves(made: Mapping[str, Any]) -> dict[str, list[Result]]:
    """Each policy's results by rising budget; policies with equal results throughout share a curve and its name."""
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


def _alike(curves: Mapping[str, list[Result]]) -> str:
    """What is not drawn by itself, and why."""
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
        lines.append(PlotLine(name, COLORS[place % len(COLORS)], values(results), AGAIN if again else look, text))
    return lines


def _over_budgets(
    made: Mapping[str, Any], curves: Mapping[str, list[Result]], name: str, title: str, unit: str, read: Read,
    ceiling: bool = False,
) -> Figure:  # fmt: skip
    budgets = made["budgets"]
    text: Text = {"link": size, "step": lambda v: f"{v:.2f}"}.get(name, fine)
    lines = _lines(curves, lambda results: [read(one) for one in results], text)
    if ceiling:
        lines.append(PlotLine("ceiling", "muted", made["ceiling"], AGAIN, text))
    marks = [EventMark(made["configured_bytes"], "configured", f"configured: {size(made['configured_bytes'])}")]
    return Figure(
        name, title, unit, budgets, [size(budget) for budget in budgets], "hot budget",
        logarithmic(max(1, budgets[0]), max(2, budgets[-1]), size, base=2, most=5), _upwards(name, lines), lines,
        marks=[mark for mark in marks if budgets[0] <= mark.at <= budgets[-1]], group="budgets", wide=ceiling,
    )  # fmt: skip


def _upwards(name: str, lines: Sequence[PlotLine]) -> Scale:
    values = [value for line in lines for value in line.values if value is not None]
    if name == "link":
        return linear(0.0, max(values, default=1.0) or 1.0, size, binary=True)
    if name == "step":
        low, high = bounds([line.values for line in lines])
        return linear(low, high, lambda v: f"{v:g}")
    return linear(0, 1, percent)


def _course(made: Mapping[str, Any], curves: Mapping[str, list[Result]]) -> Figure:
    """Shares of hot lookups over the stream, at the configured budget, or at the middle one."""
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
    return Figure(
        "course", "Hot lookups over the stream", f"share, at {size(budgets[place])}", samples,
        [f"{count(done)} samples" for done in samples], "samples", linear(0.0, max(samples, default=1), tick, ticks=5),
        linear(0, 1, percent), lines, group="course", wide=True,
        note="Policies that arrange the stream train its samples in an order of their own.",
    )  # fmt: skip


# Tables --------------------------------------------------------------------------------------------------------------


def _table(made: Mapping[str, Any]) -> Markup:
    timed = made["hardware"] is not None
    heads = ["policy", "budget>", "hot rows>", "hot lookups>", "first window>", "after it>", "popular samples>",
             "rows migrated>", "up a step>", "down a step>"] + (["step, ms>"] if timed else [])  # fmt: skip
    rows = []
    seen = set()
    for one in made["results"]:
        if not one["follows_budget"] and one["policy"] in seen:
            continue
        seen.add(one["policy"])
        steps = max(1, one["counts"]["steps"])
        later = one["later_hot_lookup_ratio"]
        shares = [one["hot_lookup_ratio"], one["first_window_hot_lookup_ratio"]]
        budget = size(one["budget_bytes"]) if one["follows_budget"] else "any"
        cells = [one["policy"], budget, whole(one["hot_rows"]), *map(fine, shares)]
        cells += ["–" if later is None else fine(later), fine(one["popular_sample_ratio"]), whole(one["migrated_rows"])]
        cells += [size(one["host_to_device_bytes"] / steps), size(one["device_to_host_bytes"] / steps)]
        rows.append(cells + ([f"{1e3 * one['predicted_step_seconds']:.2f}"] if timed else []))
    said = (
        "Up and down: cold rows with their optimizer state, once each way for each step that touches them, and rows that change "
        "tier; what describes a batch is left out, and no row is taken over from a batch before it. Hot rows: at the end."
    )
    return table(heads, rows, said)
