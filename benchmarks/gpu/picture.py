"""A timeline as an SVG picture: a lane for each kind of work, a bar for each interval. Written by hand: no library is needed."""

from __future__ import annotations

from html import escape

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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="14">{escape(title)}</text>',
    ]
    for number, (lane, intervals) in enumerate(lanes.items()):
        y = TOP + LANE * number
        parts.append(f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{escape(NAMES.get(lane, lane))}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 20}" height="{LANE - 6}" fill="#f2f2f2"/>')
        for a, b in cut(intervals, start, end):
            x, width = LEFT + (a - start) * scale, max(0.4, (b - a) * scale)
            colour = COLOURS.get(lane, "#333333")
            parts.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{LANE - 6}" fill="{colour}"/>')
    parts += axis(start, end, scale, TOP + LANE * len(lanes))
    parts += step_lines([step for step in steps if start <= step <= end], start, scale, TOP + LANE * len(lanes))
    return "\n".join([*parts, "</svg>", ""])


def axis(start: float, end: float, scale: float, y: float) -> list[str]:
    """Ten ticks, in milliseconds from the picture's left edge."""
    parts = []
    for tick in range(11):
        at = (end - start) * tick / 10
        x = LEFT + at * scale
        parts.append(f'<line x1="{x:.2f}" y1="{TOP - 6}" x2="{x:.2f}" y2="{y}" stroke="#cccccc" stroke-width="0.5"/>')
        anchor = "end" if tick == 10 else "middle"
        parts.append(f'<text x="{x:.2f}" y="{y + 16}" text-anchor="{anchor}" font-size="11">{1e3 * at:.2f} ms</text>')
    return parts


def step_lines(steps: list[float], start: float, scale: float, y: float) -> list[str]:
    """A dashed line where the training thread begins a step; the device is at work on it somewhat later."""
    xs = [LEFT + (step - start) * scale for step in steps]
    line = '<line class="step" x1="{0:.2f}" y1="{1}" x2="{0:.2f}" y2="{2}" stroke="#000000" stroke-dasharray="4 3"/>'
    told = f'<text x="{LEFT}" y="{y + 40}" font-size="11">dashed: the training thread begins a step</text>'
    return [*(line.format(x, TOP - 12, y + 4) for x in xs), told]
