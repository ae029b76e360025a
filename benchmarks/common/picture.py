"""The picture of a benchmark: a panel for each cell, a bar for each contestant, cut by stage; the dashed line is the floor."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

INK, PALE = "#24292f", "#6e7781"
WIDTH, LEFT, RIGHT, BAR, GAP = 1000, 230, 150, 20, 8
COLOURS = {
    "dense": "#8d99a6", "dense step": "#bcc5ce", "distinct rows": "#7570b3", "rows read": "#1b9e77", "rows updated": "#d95f02",
    "waiting": "#e7298a", "planning": "#e6ab02", "tracking": "#a6761d", "the rest": "#3b4148",
}  # fmt: skip
NAMES = {"dense": "forward, backward", "dense step": "dense optimizer", "waiting": "waiting for a batch"}
WHOLE, OTHERS = "#1f6feb", "#8d99a6"
"""Of bars without stages: a run of ours, others."""


def draw(title: str, panels: tuple[tuple[str, str], ...], results: dict[str, Any]) -> str:
    """Return an SVG of the cells that were measured; empty where none of them was."""
    named = dict(panels)
    cells = {name: cell["result"]["runs"] for name, cell in results["cells"].items() if name in named and "result" in cell}
    about = results["about"]
    told = f"{about['processor']}, {about['cores']} cores, {about['date']}" if about.get("versions") else ""
    told = f"REHEARSAL, NO FIGURE - {told}" if about.get("rehearsal") else told
    found = [(of_cell, cells[name]) for name, of_cell in panels if name in cells]
    return of_panels(title, told, found) if found else ""


def of_panels(title: str, told: str, panels: list[tuple[str, dict[str, Any]]]) -> str:
    """Return an SVG. Bars of a panel are scaled to its own longest."""
    parts = [text(16, 28, title, size=17, weight="600"), text(16, 48, told, size=12, colour=PALE)]
    runs_of_all = [run for _, runs in panels for run in runs.values()]
    drawn = [stage for stage in COLOURS if any(stage in run.get("stages", {}) for run in runs_of_all)]
    parts += legend([(COLOURS[stage], NAMES.get(stage, stage)) for stage in drawn], 16.0, 72.5)
    y = 106.0
    for name, runs in panels:
        bars, height = panel(name, runs, y)
        parts += bars
        y += height
    return page(WIDTH, y, parts)


def panel(title: str, runs: dict[str, Any], top: float) -> tuple[list[str], float]:
    order = sorted(runs, key=lambda name: not name.startswith("floor"))
    scale = (WIDTH - LEFT - RIGHT) / max(run["median"] for run in runs.values())
    height, floor = len(runs) * (BAR + GAP), runs.get("floor", {}).get("median")
    parts = [text(16, top, title, size=14, weight="600")]
    top += 14
    for number, name in enumerate(order):
        run, y = runs[name], top + number * (BAR + GAP)
        parts.append(text(LEFT - 10, y + BAR - 5.5, name.replace("floor", "dense floor"), "end"))
        x = LEFT + run["median"] * scale
        parts += stacked(run, y, scale, WHOLE if name.startswith("ours") else OTHERS)
        ratio = f", {run['median'] / floor:.2f}x" if floor and name != "floor" else ""
        parts.append(text(x + 8, y + BAR - 5.5, f"{1e3 * run['median']:.3g} ms{ratio}", size=12, colour=PALE))
    if floor:
        x = LEFT + floor * scale
        parts.append(rule(x, top - 4, x, top + height - GAP + 4, INK, dashed=True, width=1.2))
    return parts, height + 50


def stacked(run: dict[str, Any], y: float, scale: float, colour: str) -> list[str]:
    """Return the bar of a run. Medians of stages do not quite add up to that of the step, so they are its shares."""
    stages = {stage: max(0.0, run.get("stages", {}).get(stage, 0.0)) for stage in COLOURS}
    if not (whole := sum(stages.values())):
        return [rectangle(LEFT, y, run["median"] * scale, BAR, colour)]
    parts, x = [], float(LEFT)
    for stage, seconds in stages.items():
        width = seconds / whole * run["median"] * scale
        parts.append(rectangle(x, y, width, BAR, COLOURS[stage]))
        x += width
    return parts


# Parts of an SVG ----------------------------------------------------------------------------------------------------


def text(
    x: float, y: float, words: str, anchor: str = "start", size: int = 13, colour: str = INK, weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{bold}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0.0, width):.2f}" height="{height:.2f}" fill="{colour}"/>'


def rule(x1: float, y1: float, x2: float, y2: float, colour: str, dashed: bool = False, width: float = 1) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def page(width: int, height: float, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif">'
    )
    return "\n".join([head, rectangle(0, 0, width, height, "#ffffff"), *parts, "</svg>", ""])


def legend(names: Iterable[tuple[str, str]], x: float, y: float) -> list[str]:
    """Squares of (colour, name) in a line."""
    parts = []
    for colour, name in names:
        parts += [rectangle(x, y - 10.5, 12, 12, colour), text(x + 17, y, name, size=12)]
        x += 36 + 6.4 * len(name)
    return parts
