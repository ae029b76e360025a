"""The picture of the Globo study: hot lookups by day, a panel for each budget."""

from __future__ import annotations

from typing import Any

from benchmarks.common.pictures import GRID, PALE, dot, page, polyline, rule, text

WAYS = {
    "exact": ("#8d99a6", "best fixed memory, exact counts", True),
    "adaptive": ("#1b9e77", "adaptive", False),
    "sketch": ("#d95f02", "default memory", False),
    "static": ("#7570b3", "first day's rows", False),
}
"""Colour, name, and whether the line is dashed."""
LEFT, TOP, WIDTH, HEIGHT, BETWEEN = 60, 118, 390, 250, 110


def draw(studies: list[dict[str, Any]]) -> str:
    parts = [
        text(16, 28, "Lookups that hit hot rows, day by day, on news clicks (Globo.com)", size=17, weight="600"),
        text(
            16,
            48,
            "3.0 M clicks on 46 k articles; hot rows follow the popularity of articles as it is remembered",
            size=12,
            colour=PALE,
        ),
    ]
    x = 16.0
    for colour, name, dashed in WAYS.values():
        parts += [polyline([(x, 74.0), (x + 22, 74.0)], colour, 2.2, dashed), text(x + 28, 78.5, name, size=12)]
        x += 60 + 6.2 * len(name)
    for number, study in enumerate(studies):
        parts += panel(study, LEFT + number * (WIDTH + BETWEEN))
    width = LEFT + len(studies) * (WIDTH + BETWEEN) - BETWEEN + 60
    return page(width, TOP + HEIGHT + 56, parts)


def panel(study: dict[str, Any], left: float) -> list[str]:
    days = len(study["ways"]["static"]["by_day"])

    def at(day: int, ratio: float) -> tuple[float, float]:
        return left + 12 + (WIDTH - 24) * day / (days - 1), TOP + HEIGHT * (1 - ratio)

    parts = [
        text(left, TOP - 14, f"{100 * study['share']:.0f} % of the articles hot ({study['capacity']:,})", weight="600")
    ]
    for percent in range(0, 101, 20):
        y = at(0, percent / 100)[1]
        parts += [rule(left, y, left + WIDTH, y, GRID), text(left - 8, y + 4, f"{percent} %", "end", 12, PALE)]
    parts += [text(at(day, 0)[0], TOP + HEIGHT + 20, str(day + 1), "middle", 12, PALE) for day in range(0, days, 3)]
    parts.append(text(left + WIDTH / 2, TOP + HEIGHT + 42, "day", "middle", 12, PALE))
    for name in reversed(WAYS):
        colour, _, dashed = WAYS[name]
        points = [at(day, ratio) for day, ratio in enumerate(study["ways"][name]["by_day"])]
        parts.append(polyline(points, colour, 2.2, dashed))
        if not dashed:
            parts += [dot(x, y, colour, 3) for x, y in points]
    for name in ("adaptive", "sketch", "static"):
        ratio = study["ways"][name]["by_day"][-1]
        x, y = at(days - 1, ratio)
        parts.append(text(x + 9, y + 4, f"{100 * ratio:.1f} %", "start", 12, WAYS[name][0], "600"))
    return parts
