"""Charts as values: lines over a sequence of points, and rows of tracks. Templates and the page's script draw them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from adaptive_rec.offline.pages.scale import Column, Scale, Text

TABLE_ROWS = 12
"""Rows of the table that repeats a plot's values."""
EDGE_RATIO = 0.05
"""Part of the width, at each side, in which a tick's text is not centred on it."""


class Key(NamedTuple):
    """An entry of a legend. `color` is the name of a colour of the style sheet, as in all classes below."""

    label: str
    color: str
    look: str = "area"
    value: str | None = None


class ChartTable(NamedTuple):
    """A table. Columns whose heads end in ``>`` are aligned right; the first cell of a row is its head."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    """What the table has of the values, where that is not all."""


@dataclass(frozen=True)
class PlotLine:
    """One quantity of a plot. `look` is line, area, dashed, points or both (points joined by a line)."""

    label: str
    color: str
    values: Column
    look: str = "line"
    text: Text = str

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def newest(self) -> str:
        return self.shown(next(reversed(self.known), None))

    def shown(self, value: float | None) -> str:
        return "–" if value is None else self.text(value)


@dataclass(frozen=True)
class PlotMark:
    """An event or a setting, drawn as a vertical line through a plot."""

    at: float
    kind: str
    text: str
    number: int | None = None


@dataclass(frozen=True)
class Plot:
    """Lines over one sequence of points."""

    kind: ClassVar[str] = "plot"
    name: str
    """The element's id."""
    title: str
    unit: str
    x_values: Sequence[float]
    x_texts: Sequence[str]
    x_head: str
    x: Scale
    y: Scale
    lines: Sequence[PlotLine]
    starts: frozenset[int] = frozenset()
    """Points before which lines break."""
    marks: Sequence[PlotMark] = ()
    span: Sequence[tuple[float, float] | None] = ()
    """Lowest and highest value behind each point, drawn as a band."""
    stacked: bool = False
    note: str = ""
    group: str = "time"
    """Plots of one group show the values at the pointer together."""
    wide: bool = False
    about: str = ""
    """The plot in words, where first, lowest, highest and last value of each line are not what it says."""

    @property
    def is_empty(self) -> bool:
        return not self.x_values

    @property
    def description(self) -> str:
        parts = []
        for line in self.lines:
            if known := line.known:
                first, low, high, last = (line.text(v) for v in (known[0], min(known), max(known), known[-1]))
                parts.append(f"{line.label}: {first} at first, {last} at last, between {low} and {high}")
        return self.about or f"{self.title}{' ' + self.unit if self.unit else ''}. " + "; ".join(parts)

    @property
    def legend(self) -> list[Key]:
        return [Key(line.label, line.color, line.look, line.newest) for line in self.lines]

    @property
    def table(self) -> ChartTable:
        """Some of the points as a table."""
        count = len(self.x_values)
        places = sorted({round(n * (count - 1) / (TABLE_ROWS - 1)) for n in range(TABLE_ROWS)})
        some = f"{len(places)} of {count} points" if len(places) < count else "all points"
        rows = [[self.x_texts[at], *(line.shown(line.values[at]) for line in self.lines)] for at in places]
        return ChartTable([self.x_head, *(f"{line.label}>" for line in self.lines)], rows, some)

    @property
    def placed_marks(self) -> Iterator[tuple[PlotMark, float, bool]]:
        """Each mark with its place from 0 to 1, and whether its number is drawn lower, as another one is close to it."""
        last, lower = -1.0, False
        for mark in self.marks:
            place = self.x.place(mark.at)
            lower = place - last < 0.03 and not lower
            last = place
            yield mark, place, lower

    @property
    def figures(self) -> dict[str, Any]:
        """What the page's script draws, in places from 0 to 1, and the texts it shows at each point."""
        points = list(range(len(self.x_values)))
        x = [_placed(self.x, value) for value in self.x_values]
        if self.stacked or self.span:  # boxes over the steps behind a point: the first one begins with the scale
            points, x = [0, *points], [0.0, *x]
        shift = len(points) - len(self.x_values)
        return {
            "x": x,
            "at": [self.x_texts[at] for at in points],
            "values": [[line.shown(line.values[at]) for at in points] for line in self.lines],
            "series": [
                {"color": color, "look": look, "y": [_placed(self.y, values[at]) for at in points]}
                for color, look, values in self._series()
            ],
            "starts": sorted(at + shift for at in self.starts),
            "ticks": [[[_placed(scale, tick), scale.text(tick)] for tick in scale.ticks] for scale in (self.x, self.y)],
            "group": self.group,
        }  # fmt: skip

    def _series(self) -> Iterator[tuple[str, str, Column]]:
        """Yield what is drawn, from back to front: colour, look and values."""
        if self.stacked:
            sums = list(accumulate(([value or 0.0 for value in line.values] for line in self.lines), _sum))
            for line, values in zip(reversed(self.lines), reversed(sums), strict=True):
                yield line.color, "layer", values
            return
        if any(span and span[0] < span[1] for span in self.span):
            for side in (1, 0):
                yield self.lines[0].color, "edge", [span and span[side] for span in self.span]
        yield from ((line.color, line.look, line.values) for line in self.lines)


@dataclass(frozen=True)
class Piece:
    """A part of a track, drawn by its look and style; `text` is shown under the pointer."""

    look: str
    style: str
    text: str = ""


@dataclass(frozen=True)
class TrackRow:
    """One line of a chart of tracks: a name, a drawing as wide as the chart, a value, and a verdict with its text."""

    name: str
    pieces: Sequence[Piece]
    value: str
    about: str
    """The drawing in words."""
    color: str = "text"
    verdict: tuple[str, str] | None = None


@dataclass(frozen=True)
class Tracks:
    """Rows of tracks below each other, with an axis where they share a scale. `kind` is dots, bars or heat."""

    kind: str
    name: str
    title: str
    unit: str
    rows: Sequence[TrackRow]
    x: Scale | None = None
    note: str = ""
    legend: Sequence[Key] = ()
    table: ChartTable | None = None
    wide: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def ticks(self) -> Iterator[tuple[str, float, str]]:
        """The ticks of the axis: text, place from 0 to 1, and the edge that is near."""
        if (scale := self.x) is None:
            return
        for value in scale.ticks:
            place = scale.place(value)
            yield scale.text(value), place, "first" if place < EDGE_RATIO else "last" if place > 1 - EDGE_RATIO else ""


def _placed(scale: Scale, value: float | None) -> float | None:
    return None if value is None else round(scale.place(value), 4)


def _sum(below: list[float], values: list[float]) -> list[float]:
    return [one + other for one, other in zip(below, values, strict=True)]
