"""A timeline as an SVG picture: a lane for each kind of work, a bar for each interval."""

from __future__ import annotations

from benchmarks.common.pictures import page, rectangle, rule, text
from benchmarks.gpu.intervals import Intervals, cut

WIDTH, LEFT, LANE, TOP = 1200, 150, 30, 56
COLOURS = {
    "up": "#d95f02",
    "down": "#e6ab02",
    "gather": "#e7298a",
    "scatter": "#a6266a",
    "kernels": "#1b9e77",
    "load": "#7570b3",
    "classify": "#a6a3d1",
    "training thread": "#666666",
}
NAMES = {
    "load": "load (ahead)",
    "classify": "classify (ahead)",
    "gather": "host: cold rows out",
    "up": "copies up",
    "kernels": "kernels",
    "down": "copies down",
    "scatter": "host: cold rows home",
}


def draw(title: str, lanes: dict[str, Intervals], start: float, end: float, steps: list[float]) -> str:
    """The part between `start` and `end`, in seconds, as the text of an SVG file. `steps` are when steps begin."""
    height = TOP + LANE * len(lanes) + 60
    scale = (WIDTH - LEFT - 20) / max(end - start, 1e-9)
    parts = [text(12, 24, title, size=14)]
    for number, (lane, intervals) in enumerate(lanes.items()):
        y = TOP + LANE * number
        parts += [
            text(LEFT - 10, y + 18, NAMES.get(lane, lane), "end"),
            rectangle(LEFT, y, WIDTH - LEFT - 20, LANE - 6, "#f2f2f2"),
        ]
        for a, b in cut(intervals, start, end):
            width = max(0.4, (b - a) * scale)
            parts.append(rectangle(LEFT + (a - start) * scale, y, width, LANE - 6, COLOURS.get(lane, "#333333")))
    parts += axis(start, end, scale, TOP + LANE * len(lanes))
    parts += step_lines([step for step in steps if start <= step <= end], start, scale, TOP + LANE * len(lanes))
    return page(WIDTH, height, parts)


def axis(start: float, end: float, scale: float, y: float) -> list[str]:
    """Ten ticks, in milliseconds from the picture's left edge."""
    parts = []
    for tick in range(11):
        at = (end - start) * tick / 10
        x = LEFT + at * scale
        parts.append(rule(x, TOP - 6, x, y, "#cccccc", width=0.5))
        parts.append(text(x, y + 16, f"{1e3 * at:.2f} ms", "end" if tick == 10 else "middle", 11))
    return parts


def step_lines(steps: list[float], start: float, scale: float, y: float) -> list[str]:
    """Return a dashed line at each time at which the training thread begins a step; the device works on it somewhat later."""
    xs = [LEFT + (step - start) * scale for step in steps]
    line = '<line class="step" x1="{0:.2f}" y1="{1}" x2="{0:.2f}" y2="{2}" stroke="#000000" stroke-dasharray="4 3"/>'
    note = text(LEFT, y + 40, "dashed: the training thread begins a step", size=11)
    return [*(line.format(x, TOP - 12, y + 4) for x in xs), note]
