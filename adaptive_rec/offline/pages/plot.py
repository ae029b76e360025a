"""Plots as HTML: lines are SVG stretched to its box, all text is text of the page.

So a plot fits a phone and a sheet of paper alike, takes its colours from the page, and is drawn without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from adaptive_rec.offline.pages.markup import BLANK, data, tag
from adaptive_rec.offline.pages.page import folded, table
from adaptive_rec.offline.pages.scale import Column, Scale, Text

SIDE = 1000
"""Units of a plot's drawing, both ways."""
TABLE_ROWS = 12
"""Rows of the table that repeats a plot's values."""
EDGE_RATIO = 0.05
"""Part of the width, at each side, in which a tick's text is not centred on it."""


@dataclass(frozen=True)
class PlotLine:
    """One quantity of a plot. `look` is line, area, dashed, points or both (points joined by a line)."""

    label: str
    color: str
    """Name of a colour of the style sheet."""
    values: Column
    look: str = "line"
    text: Text = str

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

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

    def html(self) -> Markup:
        if not self.x_values:
            return chart(
                self.title, self.unit, tag("p", "No figures.", class_="notice"), name=self.name, wide=self.wide
            )
        drawn = [self._grid(), self._band(), *(self._layers() if self.stacked else self._curves())]
        picture = tag(
            "div", canvas(*drawn), *self._points(), *self._y_ticks(), *x_ticks(self.x), *self._marks(),
            tag("i", class_="hair", hidden="hidden"),
            class_="picture", role="img", aria_label=self.description(), data_group=self.group,
        )  # fmt: skip
        figures = {
            "x": [round(self.x.place(value), 4) for value in self.x_values],
            "at": list(self.x_texts),
            "values": [[line.shown(value) for value in line.values] for line in self.lines],
        }
        parts = (self._legends(), picture), (self._table(), data(figures, class_="figures"))
        return chart(self.title, self.unit, *parts[0], note=self.note, below=parts[1], name=self.name, wide=self.wide)

    def description(self) -> str:
        """Return the plot in words: first, lowest, highest and last value of each line."""
        parts = []
        for line in self.lines:
            if known := line.known:
                first, low, high, last = (line.text(v) for v in (known[0], min(known), max(known), known[-1]))
                parts.append(f"{line.label}: {first} at first, {last} at last, between {low} and {high}")
        return f"{self.title}{' ' + self.unit if self.unit else ''}. " + "; ".join(parts)

    def _legends(self) -> Markup:
        items = {
            line.label: (line.look, f"--c:var(--{line.color})", [BLANK, tag("b", line.shown(next(reversed(line.known), None)))])
            for line in self.lines
        }  # fmt: skip
        return legends(items)

    # What is drawn ---------------------------------------------------------------------------------------------------

    def _grid(self) -> Markup:
        ys = [_at(1 - self.y.place(tick)) for tick in self.y.ticks]
        return tag("path", d="".join(f"M0 {y}H{SIDE}" for y in ys), class_="gridlines")

    def _band(self) -> Markup | None:
        if not any(span and span[0] < span[1] for span in self.span):
            return None
        boxes = [self._box(place, *span) for place, span in enumerate(self.span) if span]
        return tag("path", d="".join(boxes), class_="band", style=f"--c:var(--{self.lines[0].color})")

    def _box(self, place: int, low: float, high: float) -> str:
        """Return the path of a box over the steps behind a point; empty where it has no height."""
        first = self.x.low if place == 0 else self.x_values[place - 1]
        left, right = (_at(self.x.place(value)) for value in (first, self.x_values[place]))
        bottom, top = (_at(1 - self.y.place(value)) for value in (low, high))
        return f"M{left} {bottom}V{top}H{right}V{bottom}z" if top != bottom else ""

    def _curves(self) -> list[Markup]:
        drawn = []
        for line in self.lines:
            if line.look == "points":
                continue
            path, joined = [], False
            for place, value in enumerate(line.values):
                if value is not None:
                    point = f"{_at(self.x.place(self.x_values[place]))} {_at(1 - self.y.place(value))}"
                    path.append(("L" if joined and place not in self.starts else "M") + point)
                joined = value is not None
            path += ["h4"] if len(line.known) == 1 else []  # a single point would not be seen
            drawn.append(tag("path", d="".join(path), class_=f"line {line.look}", style=f"--c:var(--{line.color})"))
        return drawn

    def _layers(self) -> list[Markup]:
        """Return the lines as layers on top of each other, a box for each point."""
        drawn = []
        base = [0.0] * len(self.x_values)
        for line in self.lines:
            boxes = []
            for place, value in enumerate(line.values):
                if value:
                    boxes.append(self._box(place, base[place], base[place] + value))
                    base[place] += value
            drawn.append(tag("path", d="".join(boxes), class_="layer", style=f"--c:var(--{line.color})"))
        return drawn

    def _points(self) -> list[Markup]:
        return [
            tag("i", class_="point", style=f"left:{self.x.place(self.x_values[place]):.2%};"
                f"top:{1 - self.y.place(value):.2%};--c:var(--{line.color})")
            for line in self.lines
            if line.look in {"points", "both"}
            for place, value in enumerate(line.values)
            if value is not None
        ]  # fmt: skip

    def _y_ticks(self) -> list[Markup]:
        return [
            tag("span", self.y.text(value), class_="y", style=f"top:{1 - self.y.place(value):.2%}") for value in self.y.ticks
        ]  # fmt: skip

    def _marks(self) -> list[Markup]:
        drawn, last, lower = [], -1.0, False
        for mark in self.marks:
            place = self.x.place(mark.at)
            lower = place - last < 0.03 and not lower  # numbers close to each other alternate in height
            last = place
            look = f"mark {mark.kind}{' lower' if lower else ''}"
            drawn.append(tag("i", tag("b", mark.number), class_=look, style=f"left:{place:.2%}", title=mark.text))
        return drawn

    def _table(self) -> Markup:
        """Return some of the points as a table."""
        count = len(self.x_values)
        places = sorted({round(n * (count - 1) / (TABLE_ROWS - 1)) for n in range(TABLE_ROWS)})
        some = f"{len(places)} of {count} points" if len(places) < count else "all points"
        rows = [[self.x_texts[at], *(line.shown(line.values[at]) for line in self.lines)] for at in places]
        heads = [self.x_head, *(f"{line.label}>" for line in self.lines)]
        return folded(f"As a table ({some})", table(heads, rows, card=False))


# Parts that all plots share --------------------------------------------------------------------------------------------


def chart(
    title: str, unit: str, *parts: Any, note: str = "", below: Sequence[Any] = (), name: str | None = None, wide: bool = False
) -> Markup:  # fmt: skip
    """Return a card with a title, a drawing, a note, and what stands below the note."""
    heading = tag("h2", title, tag("span", f" {unit}", class_="muted") if unit else None)
    caption = tag("figcaption", heading, tag("span", class_="muted at"))
    said = tag("p", note, class_="muted fine") if note else None
    return tag("figure", caption, *parts, said, *below, class_="card chart wide" if wide else "card chart", id=name)


def charts(*drawn: Plot | Markup | None) -> Markup:
    """Return a grid of charts."""
    return tag("div", *(each.html() if isinstance(each, Plot) else each for each in drawn), class_="charts")


def legends(items: Mapping[str, tuple[str, str, Sequence[Any]]]) -> Markup:
    """Return a legend: by label the look and the style of a swatch, and what follows the label."""
    each = [
        tag("span", tag("i", class_=f"swatch {look}", style=style), label, *more, class_="legend")
        for label, (look, style, more) in items.items()
    ]
    return tag("div", *each, class_="legends")


def mark_key(texts: Mapping[str, str], numbered: str = "") -> Markup | None:
    """Return an explanation of the marks in the plots, by their kind. Marks of the kind `numbered` carry numbers."""
    samples = [
        tag("span", tag("i", tag("b", "1" if kind == numbered else None), class_=f"mark {kind}"), text)
        for kind, text in texts.items()
    ]
    return tag("p", *samples, class_="marks") if samples else None


def canvas(*paths: Any, height: int = SIDE) -> Markup:
    """Return a drawing that is stretched to its box."""
    return tag("svg", *paths, viewBox=f"0 0 {SIDE} {height}", preserveAspectRatio="none", aria_hidden="true")


def x_ticks(scale: Scale) -> list[Markup]:
    ticks = []
    for value in scale.ticks:
        place = scale.place(value)
        edge = " first" if place < EDGE_RATIO else " last" if place > 1 - EDGE_RATIO else ""
        ticks.append(tag("span", scale.text(value), class_=f"x{edge}", style=f"left:{place:.2%}"))
    return ticks


@dataclass(frozen=True)
class TrackRow:
    """One line of a chart of tracks: a name, a drawing as wide as the chart, a value."""

    name: str
    drawn: Sequence[Markup]
    value: Any
    about: str
    """The drawing in words."""
    style: str | None = None


def tracks(kind: str, rows: Sequence[TrackRow], x: Scale | None = None) -> Markup:
    """Return rows of tracks below each other, with an axis where they share a scale. `kind` is dots, bars or heat."""
    cells = []
    for row in rows:
        cells += [
            tag("span", row.name, class_="track-name", title=row.name),
            tag("div", *row.drawn, class_="track", role="img", aria_label=row.about, style=row.style),
            tag("span", row.value, class_="track-value"),
        ]
    if x is not None:
        cells += [tag("span"), tag("div", *x_ticks(x), class_="axis", aria_hidden="true"), tag("span")]
    return tag("div", *cells, class_=f"tracks {kind}")


def _at(part: float) -> str:
    """Return a place from 0 to 1 in units of the drawing."""
    return f"{part * SIDE:.1f}".removesuffix(".0")
