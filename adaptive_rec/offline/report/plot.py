"""Plots as HTML: lines are SVG that is stretched to its box, all text is text of the page.

So a plot fits a phone and a sheet of paper alike, takes its colours from the page, and needs no script to be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptive_rec.offline.report.markup import Markup, data, tag
from adaptive_rec.offline.report.scale import Scale, Text

SIDE = 1000
"""Units of a plot's drawing, both ways."""
TABLE_ROWS = 12
"""Rows of the table that stands for a plot."""

Values = Sequence[float | None]


@dataclass(frozen=True)
class PlotLine:
    """One quantity of a plot. `look` is line, area, dashed, points or both (points joined by a line)."""

    label: str
    color: str
    """Name of a colour of the style sheet."""
    values: Values
    look: str = "line"
    text: Text = str


@dataclass(frozen=True)
class EventMark:
    """Something that happened, as a line through a plot."""

    at: float
    kind: str
    text: str
    number: int | None = None


@dataclass
class Figure:
    """A plot of lines over `x`, which all share."""

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
    starts: set[int] = field(default_factory=set)
    """Points before which lines break."""
    marks: Sequence[EventMark] = ()
    span: Sequence[tuple[float, float] | None] = ()
    """Lowest and highest value behind each point, drawn as a band."""
    stacked: bool = False
    note: str = ""
    group: str = "time"
    """Plots of one group share the reader's place."""
    wide: bool = False
    about: str = ""
    """A sentence for who does not see the plot; made of the lines where it is empty."""

    def html(self) -> Markup:
        if not self.x_values:
            return tag(
                "figure", self._caption(), tag("p", "No figures.", class_="notice"), class_=self._class, id=self.name
            )
        drawn = [*self._grid(), *self._band(), *(self._stack() if self.stacked else self._lines())]
        canvas = tag(
            "svg",
            *drawn,
            viewBox=f"0 0 {SIDE} {SIDE}",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
        picture = tag(
            "div", canvas, *self._points(), *self._ticks(), *self._marks(), tag("i", class_="hair", hidden="hidden"),
            class_="picture", role="img", aria_label=self.about or self.description(), data_group=self.group,
        )  # fmt: skip
        figures = {
            "x": [round(self.x.place(value), 4) for value in self.x_values],
            "at": list(self.x_texts),
            "values": [[shown(line, value) for value in line.values] for line in self.lines],
        }
        note = tag("p", self.note, class_="muted fine") if self.note else None
        return tag(
            "figure", self._caption(), self._legends(), picture, note, self._table(), data(figures, class_="figures"),
            class_=self._class, id=self.name,
        )  # fmt: skip

    @property
    def _class(self) -> str:
        return "card chart wide" if self.wide else "card chart"

    def description(self) -> str:
        """The plot in words: first, lowest, highest and last value of each line."""
        parts = []
        for line in self.lines:
            known = [value for value in line.values if value is not None]
            if known:
                first, low, high, last = (line.text(v) for v in (known[0], min(known), max(known), known[-1]))
                parts.append(f"{line.label}: {first} at first, {last} at last, between {low} and {high}")
        return f"{self.title}{' ' + self.unit if self.unit else ''}. " + "; ".join(parts)

    def _caption(self) -> Markup:
        unit = tag("span", f" {self.unit}", class_="muted") if self.unit else None
        return tag("figcaption", tag("h2", self.title, unit), tag("span", class_="muted at"))

    def _legends(self) -> Markup:
        items = []
        for line in self.lines:
            last = next((value for value in reversed(line.values) if value is not None), None)
            swatch = tag("i", class_=f"swatch {line.look}", style=f"--c:var(--{line.color})")
            items.append(tag("span", swatch, line.label, " ", tag("b", shown(line, last)), class_="legend"))
        return tag("div", *items, class_="legends")

    # What is drawn ---------------------------------------------------------------------------------------------------

    def _grid(self) -> list[Markup]:
        ys = [_at(1 - self.y.place(tick)) for tick in self.y.ticks]
        return [tag("path", d="".join(f"M0 {y}H{SIDE}" for y in ys), class_="gridlines")]

    def _band(self) -> list[Markup]:
        if not any(span and span[0] < span[1] for span in self.span):
            return []
        boxes = []
        for place, span in enumerate(self.span):
            if span:
                left, right = self._cell(place)
                top, bottom = (_at(1 - self.y.place(value)) for value in (span[1], span[0]))
                boxes.append(f"M{left} {top}H{right}V{bottom}H{left}z")
        return [tag("path", d="".join(boxes), class_="band", style=f"--c:var(--{self.lines[0].color})")]

    def _cell(self, place: int) -> tuple[str, str]:
        """Where the steps behind a point begin and end."""
        fresh = place == 0 or place in self.starts
        before = self.x.low if place == 0 else self.x_values[place - 1]
        left = before if not fresh or place == 0 else self.x_values[place - 1]
        return _at(self.x.place(left)), _at(self.x.place(self.x_values[place]))

    def _lines(self) -> list[Markup]:
        drawn = []
        for line in self.lines:
            if line.look == "points":
                continue
            path, open_ = [], False
            for place, value in enumerate(line.values):
                open_ = open_ and place not in self.starts
                if value is not None:
                    point = f"{_at(self.x.place(self.x_values[place]))} {_at(1 - self.y.place(value))}"
                    path.append(("L" if open_ else "M") + point)
                open_ = value is not None
            alone = len([value for value in line.values if value is not None]) == 1
            path += ["h4"] if alone else []
            drawn.append(tag("path", d="".join(path), class_=f"line {line.look}", style=f"--c:var(--{line.color})"))
        return drawn

    def _stack(self) -> list[Markup]:
        """Lines as layers on top of each other, a box for each point."""
        drawn = []
        base = [0.0] * len(self.x_values)
        for line in self.lines:
            boxes = []
            for place, value in enumerate(line.values):
                if not value:
                    continue
                left, right = self._cell(place)
                bottom, top = (_at(1 - self.y.place(y)) for y in (base[place], base[place] + value))
                base[place] += value
                if top != bottom:
                    boxes.append(f"M{left} {bottom}V{top}H{right}V{bottom}z")
            drawn.append(tag("path", d="".join(boxes), class_="layer", style=f"--c:var(--{line.color})"))
        return drawn

    def _points(self) -> list[Markup]:
        return [
            tag(
                "i",
                class_="point",
                style=f"left:{_percent(self.x.place(self.x_values[place]))};"
                f"top:{_percent(1 - self.y.place(value))};--c:var(--{line.color})",
            )
            for line in self.lines
            if line.look in {"points", "both"}
            for place, value in enumerate(line.values)
            if value is not None
        ]

    def _ticks(self) -> list[Markup]:
        rising = [
            tag("span", self.y.text(tick), class_="y", style=f"top:{_percent(1 - self.y.place(tick))}")
            for tick in self.y.ticks
        ]
        along = []
        for tick in self.x.ticks:
            place = self.x.place(tick)
            edge = " first" if place < 0.04 else " last" if place > 0.96 else ""
            along.append(tag("span", self.x.text(tick), class_=f"x{edge}", style=f"left:{_percent(place)}"))
        return rising + along

    def _marks(self) -> list[Markup]:
        drawn, last, lower = [], -1.0, False
        for mark in self.marks:
            place = self.x.place(mark.at)
            lower = place - last < 0.03 and not lower  # numbers too close to each other take turns in height
            last = place
            number = tag("b", str(mark.number)) if mark.number is not None else tag("b")
            look = f"mark {mark.kind}{' lower' if lower else ''}"
            drawn.append(tag("i", number, class_=look, style=f"left:{_percent(place)}", title=mark.text))
        return drawn

    def _table(self) -> Markup:
        """Some of the points as a table, for who reads rather than looks."""
        count = len(self.x_values)
        rows = sorted({round(n * (count - 1) / (TABLE_ROWS - 1)) for n in range(TABLE_ROWS)}) if count > 1 else [0]
        head = tag(
            "tr",
            tag("th", self.x_head, scope="col"),
            *(tag("th", each.label, scope="col", class_="n") for each in self.lines),
        )
        body = [
            tag(
                "tr",
                tag("th", self.x_texts[place], scope="row"),
                *(tag("td", shown(line, line.values[place]), class_="n") for line in self.lines),
            )
            for place in rows
        ]
        some = f"{len(rows)} of {count} points" if len(rows) < count else "all points"
        table = tag("table", tag("thead", head), tag("tbody", *body), class_="grid")
        return tag("details", tag("summary", f"As a table ({some})"), tag("div", table, class_="scroll"))


def shown(line: PlotLine, value: float | None) -> str:
    return "–" if value is None else line.text(value)


def _at(part: float) -> str:
    """A place from 0 to 1 in units of the drawing."""
    return f"{part * SIDE:.1f}".removesuffix(".0")


def _percent(part: float) -> str:
    return f"{part * 100:.2f}%"
