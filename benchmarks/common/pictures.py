"""Parts of SVG pictures, written by hand: no library is needed."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, PALE, GRID = "#24292f", "#6e7781", "#e4e8ec"


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
