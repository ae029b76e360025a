"""Two SVG pictures, written by hand: the step by stage against the dense floor, and step time against rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.common.pictures import GRID, INK, PALE, dot, legend, page, polyline, rectangle, rule, text
from benchmarks.common.statistics import ratio_of_medians

WIDTH, LEFT, RIGHT, BAR, GAP = 1000, 170, 150, 20, 8
COLOURS = {
    "dense": "#8d99a6",
    "dense step": "#bcc5ce",
    "distinct rows": "#7570b3",
    "rows read": "#1b9e77",
    "rows updated": "#d95f02",
    "waiting": "#e7298a",
    "planning": "#e6ab02",
    "tracking": "#a6761d",
    "the rest": "#3b4148",
}
NAMES = {
    "dense": "forward, backward",
    "dense step": "dense optimizer",
    "waiting": "waiting for a batch",
}
PANELS = (
    ("kaggle-fp32", "Criteo Kaggle, one-hot, float32"), ("kaggle-bf16", "Criteo Kaggle, one-hot, bf16"),
    ("mlperf-fp32", "MLPerf, multi-hot, float32"), ("mlperf-bf16", "MLPerf, multi-hot, bf16"),
    ("criteo", "Criteo Kaggle, real rows, float32"),
)  # fmt: skip
MILLIONS = (1, 10, 50, 200)


def draw_all(results: dict[str, Any], out: Path) -> None:
    """Write steps.svg and rows.svg, each where its cells were measured."""
    cells = {name: cell["result"]["runs"] for name, cell in results["cells"].items() if "result" in cell}
    panels = [(title, cells[name]) for name, title in PANELS if "floor" in cells.get(name, {})]
    about = results["about"]
    told = f"{about['processor']}, {about['cores']} cores, {about['date']}" if about.get("versions") else ""
    told = f"REHEARSAL, NO FIGURE - {told}" if about.get("rehearsal") else told
    if panels:
        (out / "steps.svg").write_text(steps(panels, told), encoding="utf-8")
    by_rows = {millions: cells[f"rows-{millions}m"] for millions in MILLIONS if f"rows-{millions}m" in cells}
    if len(by_rows) > 1:
        (out / "rows.svg").write_text(against_rows(by_rows, told), encoding="utf-8")


# The step by stage ---------------------------------------------------------------------------------------------------


def steps(panels: list[tuple[str, dict[str, Any]]], told: str) -> str:
    """A panel of stacked bars for each cell; the dashed line is the dense part alone."""
    parts = [
        text(16, 28, "A training step by stage, against its dense part alone", size=17, weight="600"),
        text(16, 48, told, size=12, colour=PALE),
    ]
    drawn = [stage for stage in COLOURS if any(stage in run["stages"] for _, runs in panels for run in runs.values())]
    parts += legend([(COLOURS[stage], NAMES.get(stage, stage)) for stage in drawn], 16.0, 72.5)
    y = 106.0
    for title, runs in panels:
        bars, height = panel(title, runs, y)
        parts += bars
        y += height
    return page(WIDTH, y, parts)


def panel(title: str, runs: dict[str, Any], top: float) -> tuple[list[str], float]:
    order = sorted(runs, key=lambda name: not name.startswith("floor"))
    scale = (WIDTH - LEFT - RIGHT) / max(run["median"] for run in runs.values())
    height, floor = len(runs) * (BAR + GAP), runs["floor"]["median"]
    parts = [text(16, top, title, size=14, weight="600")]
    top += 14
    for number, name in enumerate(order):
        run, y, x = runs[name], top + number * (BAR + GAP), float(LEFT)
        parts.append(
            text(
                LEFT - 10,
                y + BAR - 5.5,
                name.replace("floor", "dense floor"),
                "end",
                weight="" if name.startswith("floor") or _rival(name) else "600",
            )
        )
        stages = {stage: max(0.0, run["stages"].get(stage, 0.0)) for stage in COLOURS}
        whole = sum(stages.values())  # medians of stages do not quite add up to that of the step
        for stage, seconds in stages.items():
            width = seconds / whole * run["median"] * scale
            parts.append(rectangle(x, y, width, BAR, COLOURS[stage]))
            x += width
        ratio = "" if name == "floor" else f", {run['median'] / floor:.2f}x"
        parts.append(text(x + 8, y + BAR - 5.5, f"{1e3 * run['median']:.1f} ms{ratio}", size=12, colour=PALE))
    x = LEFT + floor * scale
    parts.append(rule(x, top - 4, x, top + height - GAP + 4, INK, dashed=True, width=1.2))
    return parts, height + 50


def _rival(name: str) -> bool:
    return name.startswith(("FBGEMM", "TorchRec", "torch"))


# Against rows --------------------------------------------------------------------------------------------------------

CHART = (70, 84, 380, 250)
"""Left, top, width and height of a chart."""


def against_rows(by_rows: dict[int, dict[str, Any]], told: str) -> str:
    """Step time and throughput at the same batch size, over a logarithmic axis of rows; whiskers are 95 % intervals."""
    millions = list(by_rows)
    lines = {"hybrid": ("#1b9e77", "whole step"), "floor": ("#8d99a6", "dense part alone")}
    parts = [text(16, 28, "Step time and throughput against rows, batches of 2048", size=17, weight="600"),
             text(16, 48, f"dim 16, row-wise Adagrad, float32; {told}", size=12, colour=PALE)]  # fmt: skip
    for number, (title, of) in enumerate(
        (("ms a step", lambda s: 1e3 * s), ("thousand samples a second", lambda s: 2.048 / s))
    ):
        left = CHART[0] + number * (CHART[2] + 80)
        found = {name: [_interval(by_rows[m][name], of) for m in millions] for name in lines}
        parts += chart(title, left, millions, {lines[name]: values for name, values in found.items()})
    return page(2 * CHART[2] + 80 + CHART[0] + 40, CHART[1] + CHART[3] + 56, parts)


def _interval(run: dict[str, Any], of: Any) -> tuple[float, float, float]:
    """Median and its 95 % interval, low to high."""
    ratio = ratio_of_medians(run["seconds"], [1.0] * len(run["seconds"]))
    low, high = sorted((of(ratio["low"]), of(ratio["high"])))
    return of(ratio["ratio"]), low, high


def chart(
    title: str, left: float, millions: list[int], lines: dict[tuple[str, str], list[tuple[float, float, float]]]
) -> list[str]:
    _, top, width, height = CHART
    most = max(high for values in lines.values() for _, _, high in values)
    step = next(step for step in (m * 10**e for e in range(-3, 6) for m in (1, 2, 5)) if most / step <= 6)
    ceiling = step * math.ceil(most / step * 1.04)
    low, span = math.log10(millions[0]), math.log10(millions[-1] / millions[0])

    def at(value: float) -> float:
        return top + height * (1 - value / ceiling)

    xs = [left + 20 + (width - 60) * (math.log10(m) - low) / span for m in millions]
    parts = [text(left, top - 12, title, weight="600")]
    for tick in range(round(ceiling / step) + 1):
        parts += [rule(left, at(tick * step), left + width, at(tick * step), GRID),
                  text(left - 8, at(tick * step) + 4, f"{tick * step:g}", "end", 12, PALE)]  # fmt: skip
    parts += [text(x, top + height + 20, f"{m} M", "middle", 12, PALE) for x, m in zip(xs, millions, strict=True)]
    parts.append(text(left + width / 2, top + height + 42, "rows", "middle", 12, PALE))
    highest = max(lines, key=lambda key: lines[key][-1][0])
    for (colour, name), values in lines.items():
        parts.append(polyline(((x, at(value)) for x, (value, _, _) in zip(xs, values, strict=True)), colour, 2.5))
        for x, (value, a, b) in zip(xs, values, strict=True):
            parts += [rule(x, at(a), x, at(b), colour, width=1.5), dot(x, at(value), colour)]
        above = (colour, name) == highest
        edge = at(values[0][2]) - 10 if above else at(values[0][1]) + 20
        parts.append(text(xs[0] - 4, edge, name, size=13, colour=colour, weight="600"))
    return parts
