"""The plots of a run's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from adaptive_rec.config.figures import of_part
from adaptive_rec.config.metrics import ranked_of, ranking_label
from adaptive_rec.offline.pages.plot import Key, Piece, Plot, PlotLine, PlotMark, TrackRow, Tracks
from adaptive_rec.offline.pages.scale import Scale, bounds, date_text, dates, height, linear_scale, logarithmic, tick
from adaptive_rec.offline.report.record import RunRecord
from adaptive_rec.offline.report.series import Column, ReportSeries
from adaptive_rec.units import count, fine, four, percent, size, whole

STAGES = ("execute", "update", "gather", "wait", "plan", "observe", "reclassify", "classify", "other")
"""Stages that have a colour, the same as on the dashboard; the last one stands for all others."""
DISK_LINES = {each.name.removeprefix("rows_"): each.line for each in of_part("disk") if each.line is not None}
"""Lines of the plot of rows on a disk: text and colour by the name of the counter."""
MOST_TABLES = 64
SHADES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Shares of hot lookups at which a table's line gets darker."""


class RunFigures:
    """The plots of a run over the samples seen, all with the same marks."""

    def __init__(self, record: RunRecord, series: ReportSeries, marks: Sequence[PlotMark]) -> None:
        self._record, self._series, self._marks = record, series, marks
        ends = [*series.samples, *(series.samples_at(e["step"]) for e in record.evaluations)]
        self._x = linear_scale(0.0, max(ends, default=1.0), tick, ticks=5)
        self._texts = [_at(step, samples) for step, samples in zip(series.steps, series.samples, strict=True)]

    def all(self, tables: Sequence[Any], total_rows: int) -> list[Plot | Tracks | None]:
        """Return the plots in their order. `tables` are those of ``run.json``."""
        return [
            self._loss(), self._auc(), self._auc_in_time(), *self._ranked(), self._hot(), self._rows(total_rows), self._skipped(),
            self._moved(), self._migrated(),
            self._disk(), self._speed(), self._tables(tables), self._stages(), self._background(),
        ]  # fmt: skip

    def _plot(self, name: str, title: str, unit: str, y: Scale, *lines: PlotLine, **more: Any) -> Plot:
        series = self._series
        return Plot(
            name, title, unit, series.samples, self._texts, "at", self._x, y, lines, frozenset(series.starts), self._marks,
            **more,
        )  # fmt: skip

    def _loss(self) -> Plot:
        lines = [PlotLine("training", "line-1", self._series.loss, text=four)]
        if self._record.evaluations:
            name = self._record.scored
            lines.append(PlotLine(name, "evaluation", self._held_out("logloss"), "points", four))
        low, high = bounds(*(line.values for line in lines))
        more: dict[str, Any] = {}
        if (stride := self._record.stride) > 1:
            note = f"The band spans the {stride} reports behind each point."
            more = {"span": self._series.loss_span, "note": note}
        return self._plot("loss", "Loss", "log loss per sample", linear_scale(low, high, tick), *lines, **more)

    def _auc(self) -> Plot:
        """Return the AUC, whose points are the evaluations themselves."""
        evaluations = [e for e in self._record.evaluations if e.get("auc") is not None]
        values = [e["auc"] for e in evaluations]
        places = [self._series.samples_at(e["step"]) for e in evaluations]
        texts = [_at(e["step"], samples) for e, samples in zip(evaluations, places, strict=True)]
        line = PlotLine("AUC", "evaluation", values, "both", four)
        title = "Held-out AUC" if self._record.scored == "held out" else "AUC of samples before training on them"
        return Plot(
            "auc", title, "", places, texts, "at", self._x, linear_scale(*bounds(values), tick), [line],
            marks=self._marks, group="evaluations",
            note="" if len(values) > 1 else "eval.every_steps or eval.count makes evaluations while a run trains.",
        )  # fmt: skip

    def _auc_in_time(self) -> Plot | None:
        """Return the AUC of the next windows over the time of their first samples, where the data has a clock."""
        windows = [e for e in self._record.evaluations if e.get("auc") is not None and is_window(e)]
        if not windows:
            return None
        times, values = [e["first_time"] for e in windows], [e["auc"] for e in windows]
        texts = [f"{date_text(e['first_time'])} to {date_text(e['last_time'])}" for e in windows]
        return Plot(
            "auc-in-time", "AUC in time", "of each window, at its first sample", times, texts, "window",
            dates(min(times), max(times)), linear_scale(*bounds(values), tick),
            [PlotLine("AUC", "evaluation", values, "both", four)],
            group="windows",
        )  # fmt: skip

    def _ranked(self) -> list[Plot]:
        """Return a plot of each metric that ranks the samples of groups."""
        of_each = [(evaluation, ranked_of(evaluation)) for evaluation in self._record.evaluations]
        plots = []
        for name in dict.fromkeys(name for _, metrics in of_each for name in metrics):
            known = [(each["step"], value) for each, metrics in of_each if (value := metrics.get(name)) is not None]
            if not known:
                continue
            places, values = [self._series.samples_at(step) for step, _ in known], [value for _, value in known]
            texts = [_at(step, samples) for (step, _), samples in zip(known, places, strict=True)]
            label = ranking_label(name)
            plots.append(Plot(
                name.replace("@", "-"), capitalized(label), "mean over groups", places, texts, "at", self._x,
                linear_scale(*bounds(values), tick), [PlotLine(label, "evaluation", values, "both", four)],
                marks=self._marks, group="evaluations",
            ))  # fmt: skip
        return plots

    def _rows(self, total_rows: int) -> Plot:
        series = self._series
        cold: Column = [None if hot is None else max(0, total_rows - hot) for hot in series.hot_rows]
        lines = (
            PlotLine("hot", "hot", series.hot_rows, text=whole),
            PlotLine("of them stale", "stale-line", series.stale_rows, "dashed", whole),
            PlotLine("cold", "cold", cold, text=whole),
        )
        known = [value for line in lines for value in line.known if value]
        y = logarithmic(min(known, default=1), max(known, default=10), tick)
        return self._plot("rows", "Rows", "by class, logarithmic; 0 is at the foot", y, *lines)

    def _hot(self) -> Plot:
        return self._plot(
            "hot", "Hot lookups and popular samples", "", linear_scale(0, 1, percent),
            PlotLine("hot lookups", "hot", self._series.hot_lookups, text=fine),
            PlotLine("popular samples", "line-1", self._series.popular_samples, text=fine),
        )  # fmt: skip

    def _skipped(self) -> Plot:
        lines = (
            PlotLine("row updates", "stale-line", self._series.skipped_updates, text=fine),
            PlotLine("samples", "line-1", self._series.skipped_samples, "dashed", fine),
        )
        high = max((value for line in lines for value in line.known), default=0.0)
        return self._plot("skipped", "Skipped", "share", linear_scale(0, max(0.05, min(1.0, high * 1.1)), percent), *lines)

    def _speed(self) -> Plot:
        line = PlotLine("samples/s", "line-1", self._series.samples_per_second, text=count)
        high = max(line.known, default=0.0) or 1.0
        return self._plot("speed", "Speed", "", linear_scale(0, high * 1.05, tick), line)

    def _moved(self) -> Plot:
        up, down = self._series.up_bytes, self._series.down_bytes
        high, note = height(size, up, down)
        return self._plot(
            "moved", "Moved between the tiers", "bytes a step", linear_scale(0, max(high, 1024.0), size, binary=True),
            PlotLine("to the hot tier", "hot", up, text=size), PlotLine("back", "memory", down, "dashed", size), note=note,
        )  # fmt: skip

    def _migrated(self) -> Plot:
        line = PlotLine("rows a step", "hot", self._series.migrated_rows, text=tick)
        high, note = height(tick, line.values)
        return self._plot("migrated", "Rows that change tier", "", linear_scale(0, high, tick), line, note=note)

    def _disk(self) -> Plot | None:
        """Return what was done with rows on a disk."""
        columns = self._series.disk
        if not columns:
            return None
        named = {name: line for name, line in DISK_LINES.items() if name in columns}  # older runs have fewer
        lines = [PlotLine(text, color, columns[name], text=count) for name, (text, color) in named.items()]
        high, note = height(count, *(line.values for line in lines))
        return self._plot("disk", "Rows on the disk", "a step", linear_scale(0, high, count), *lines, note=note)

    def _stages(self) -> Plot:
        """Return the stages stacked: together they are the wall clock without evaluations."""
        columns = self._series.stages
        order = [name for name in STAGES if name in columns]
        order[-1:-1] = sorted(set(columns) - set(STAGES))
        lines = [PlotLine(name, stage_color(name), columns[name], "area", milliseconds) for name in order]
        high, note = height(milliseconds, [sum(values) for values in zip(*columns.values(), strict=True)])
        return self._plot(
            "stages", "Where a step's time goes", "ms a step of the training thread", linear_scale(0, high, milliseconds),
            *lines, stacked=True, wide=True, note=note,
        )  # fmt: skip

    def _background(self) -> Plot | None:
        """Return the work of other threads, which overlaps with the stages."""
        columns = {name: values for name, values in self._series.background.items() if any(values)}
        if not columns:
            return None
        lines = [
            PlotLine(name, f"stage-{1 + place % 9}", values, text=milliseconds)
            for place, (name, values) in enumerate(columns.items())
        ]
        high, note = height(milliseconds, *columns.values())
        return self._plot(
            "beside", "Work on other threads", "ms a step; it overlaps with the above",
            linear_scale(0, high, milliseconds), *lines,
            wide=True, note=f"(ahead): before the step, by the clock. (beside): processor time. {note}",
        )  # fmt: skip

    def _held_out(self, name: str) -> Column:
        """Return a figure of each evaluation at the first point that is not before it."""
        values: Column = [None] * len(self._series.steps)
        for evaluation in self._record.evaluations:
            later = [place for place, step in enumerate(self._series.steps) if step >= evaluation["step"]]
            if later and evaluation.get(name) is not None:
                values[later[0]] = evaluation[name]
        return values

    # Tables ----------------------------------------------------------------------------------------------------------

    def _tables(self, tables: Sequence[Any]) -> Tracks:
        """Return the share of hot lookups of each table over time: a track each, the darker the higher the share."""
        totals = self._record.stretches[-1].snapshots[-1]["tables"]
        order = sorted(range(len(totals["lookups"])), key=lambda t: -totals["lookups"][t])[:MOST_TABLES]
        rows = []
        for table in sorted(order):
            name = tables[table]["name"] if table < len(tables) else f"table {table}"
            lookups, hot = totals["lookups"][table], totals["lookups_hot"][table]
            overall = fine(hot / lookups) if lookups else "no lookups"
            about = f"{name}: {overall} of the lookups hot, {self._first_and_last(table)}"
            rows.append(TrackRow(name, [Piece("", self._shades(table))], overall, about))
        edges = ["0%", *(f"{edge:.0%}" for edge in SHADES), "100%"]
        left_out = len(totals["lookups"]) - len(order)
        return Tracks(
            "heat", "tables", "Hot lookups of each table", "share; at the right: of all", rows, self._x, wide=True,
            legend=[Key(f"{edges[n]} – {edges[n + 1]}", f"s{n + 1}") for n in range(len(SHADES) + 1)],
            note=f"The {len(order)} tables with the most lookups; {left_out} others are not shown." if left_out else "",
        )  # fmt: skip

    def _shades(self, table: int) -> str:
        """Return a style with a colour for each sequence of points of one shade."""
        shares = [point[table] for point in self._series.tables]
        shades = [0 if share is None else 1 + sum(share >= limit for limit in SHADES) for share in shares]
        parts, left = [], 0.0
        for shade, run in groupby(range(len(shades)), key=lambda point: shades[point]):
            right = self._x.place(self._series.samples[list(run)[-1]])
            color = f"var(--s{shade})" if shade else "transparent"
            parts.append(f"{color} {left:.2%} {right:.2%}")
            left = right
        return f"background:linear-gradient(90deg,{','.join([*parts, f'transparent {left:.2%}'])})"

    def _first_and_last(self, table: int) -> str:
        known = [shares[table] for shares in self._series.tables if shares[table] is not None]
        if not known:
            return "never looked up"
        return f"{percent(known[0] or 0.0)} at first, {percent(known[-1] or 0.0)} at last"


def is_window(evaluation: Mapping[str, Any]) -> bool:
    """Whether an evaluation is of a window with known times."""
    return all(isinstance(evaluation.get(name), int | float) for name in ("first_time", "last_time"))


def capitalized(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _at(step: int, samples: float) -> str:
    return f"step {whole(step)} · {count(samples)} samples"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def stage_color(name: str) -> str:
    return f"stage-{STAGES.index(name) + 1 if name in STAGES else len(STAGES)}"
