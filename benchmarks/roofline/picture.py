"""The roofline as bars: of each kernel the roof, its work alone, its time, and its rival's."""

from __future__ import annotations

from typing import Any

from benchmarks.common.pictures import INK, PALE, page, rectangle, text

COLOURS = {"roof": "#8c959f", "in cache": "#a8d5ba", "ours": "#1f6feb", "rival": "#d29922"}
LEFT, WIDTH, BAR, GAP = 310, 960, 14, 22


def picture(rows: list[dict[str, Any]]) -> str:
    """Return an SVG; bars of a kernel are scaled to its own longest, as kernels differ a hundredfold."""
    parts = [text(LEFT, 26, "Time of a batch, and the time of what it must move at the roof of memory", weight="bold")]
    y = 48.0
    for name, colour in COLOURS.items():
        x = LEFT + 130 * list(COLOURS).index(name)
        parts += [rectangle(x, y - 10, 11, 11, colour), text(x + 16, y, name)]
    y += 20
    for row in rows:
        longest = max(value for value in (row[name] for name in COLOURS) if value)
        parts.append(text(LEFT - 12, y + BAR + 6, f"{row['kernel']}, {row['shape']}", "end"))
        for name, colour in COLOURS.items():
            if not row[name]:
                continue
            length = (WIDTH - LEFT - 90) * row[name] / longest
            parts += [rectangle(LEFT, y, length, BAR - 2, colour)]
            parts += [
                text(
                    LEFT + length + 6,
                    y + BAR - 4,
                    f"{1e3 * row[name]:.2f} ms{', ' + row['rival_name'] if name == 'rival' else ''}",
                    size=11,
                    colour=INK if name == "ours" else PALE,
                )
            ]
            y += BAR
        y += GAP
    return page(WIDTH, y, parts)
