"""Step time against memory, for all contestants, as an SVG picture."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.common.pictures import GRID, INK, PALE, dot, legend, page, polyline, rule, text
from benchmarks.disk_tier.plan import MEMORY
from benchmarks.disk_tier.setup import ADVISED, ARRAYS, BAGS, IN_MEMORY, OURS, ROCKS

COLOURS = {
    OURS: "#0969da", IN_MEMORY: INK, ROCKS: "#bf8700", ARRAYS + ADVISED: "#e5868d", BAGS + ADVISED: "#b99aea",
    ARRAYS: "#cf222e", BAGS: "#8250df",
}  # fmt: skip
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 480, 80, 20, 90, 50


def picture(found: dict[str, dict[str, Any]]) -> str:
    """Return the picture; both axes are logarithmic."""
    cells = [(cell.rows_ratio, found[cell.name]["runs"]) for cell in MEMORY if cell.name in found]
    points = {
        name: [
            (ratio, 1e3 * runs[name]["median"]) for ratio, runs in sorted(cells, key=lambda one: one[0]) if name in runs
        ]
        for name in COLOURS
    }
    times = [ms for line in points.values() for _, ms in line]
    if not times:
        return page(WIDTH, HEIGHT, [text(LEFT, TOP, "not measured")])
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def place(ratio: float, ms: float) -> tuple[float, float]:
        across = math.log(ratio / 0.04) / math.log(0.32 / 0.04)
        up = (math.log10(ms) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [text(LEFT, 24, "A step of 2048 samples, Criteo Kaggle's tables, rows on a disk", weight="bold")]
    shown = [(colour, name) for name, colour in COLOURS.items() if points[name]]
    for line in range(2):
        parts += legend(shown[line::2], LEFT, 48 + 20 * line)
    for power in range(low, high + 1):
        y = place(0.1, 10.0**power)[1]
        parts += [rule(LEFT, y, WIDTH - RIGHT, y, GRID), text(LEFT - 8, y + 4, f"{10**power:,} ms", "end", 12, PALE)]
    for ratio, _ in cells:
        parts.append(text(place(ratio, 1)[0], HEIGHT - BOTTOM + 20, f"{ratio:.0%}", "middle", 12, PALE))
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 10, "part of the rows that has room in memory", "middle", 12, PALE))
    for name, line in points.items():
        places = [place(*point) for point in line]
        parts += [
            polyline(places, COLOURS[name], dashed=name == IN_MEMORY),
            *(dot(x, y, COLOURS[name]) for x, y in places),
        ]
    return page(WIDTH, HEIGHT, parts)
