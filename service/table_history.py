"""Points of curves in bounded memory: those of a run, and those of each of its tables."""

from __future__ import annotations

from array import array
from typing import Any

from adaptive_rec.live.telemetry import ratio

POINTS_KEPT = 4096
Point = dict[str, Any]


class ThinnedSeries:
    """Points in the order of their steps. If there are too many, they are thinned evenly and still cover the whole run."""

    def __init__(self, limit: int = POINTS_KEPT) -> None:
        self.points: list[Point] = []
        self.limit = limit
        self.spacing = 1
        """Least number of steps between two points. The newest point is always kept."""

    def add(self, point: Point) -> None:
        while self.points and self.points[-1]["step"] >= point["step"]:
            self.points.pop()  # a resumed run makes these steps again
        if len(self.points) > 1 and self.points[-1]["step"] - self.points[-2]["step"] < self.spacing:
            self.points.pop()  # it was kept only as the newest
        self.points.append(point)
        if len(self.points) > self.limit:
            span = self.points[-1]["step"] - self.points[0]["step"]
            self.spacing = max(2 * self.spacing, -(-2 * span // self.limit))
            self.points = spaced(self.points, self.spacing)

    def cut(self, step: int) -> None:
        """Leave out the points after a step."""
        while self.points and self.points[-1]["step"] > step:
            self.points.pop()

    def since(self, step: int, spacing: int) -> list[Point]:
        """Return the points after a step, at least `spacing` steps apart, and the newest."""
        return spaced([point for point in self.points if point["step"] > step], spacing)


def spaced(points: list[Point], spacing: int) -> list[Point]:
    """Return points at least `spacing` steps apart, and the last one."""
    kept: list[Point] = []
    for point in points:
        if not kept or point["step"] - kept[-1]["step"] >= spacing:
            kept.append(point)
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


COUNTS = ("lookups", "lookups_hot", "hot_rows", "stale_rows")
"""What a snapshot has of each table: the first two are sums since the run began."""
KEPT_BYTES = 8 << 20
FEWEST_POINTS = 128


class TableHistory:
    """Counts of all tables over the steps: at most 4096 points, fewer where there are many tables."""

    def __init__(self, tables: int) -> None:
        point_bytes = 8 * len(COUNTS) * max(1, tables)
        self._series = ThinnedSeries(min(POINTS_KEPT, max(FEWEST_POINTS, KEPT_BYTES // point_bytes)))
        self._tables = tables

    def add(self, snapshot: dict[str, Any]) -> None:
        """Add a snapshot's counts. A table without a count has 0."""
        counts, point = snapshot.get("tables", {}), {name: snapshot[name] for name in ("step", "seconds")}
        for name in COUNTS:
            values = counts.get(name, ())[: self._tables]
            point[name] = array("q", [*values, *[0] * (self._tables - len(values))])
        self._series.add(point)

    def cut(self, step: int) -> None:
        """Leave out the points after a step."""
        self._series.cut(step)

    def columns(self, table: int, since: int, spacing: int) -> tuple[dict[str, list[float | None]], int]:
        """Return the curves of a table after a step, and the least number of steps between two points. `hot_lookup_ratio` is over
        the steps since the point before; it is unknown where there were no lookups, and where a resumed run counts anew."""
        points = self._series.since(since, spacing)
        columns: dict[str, list[float | None]] = {
            name: [point[name] for point in points] for name in ("step", "seconds")
        }
        columns |= {name: [point[name][table] for point in points] for name in ("hot_rows", "stale_rows", "lookups")}
        before = [self._before(points[0]) if points else None, *points]
        pairs = zip(before, points, strict=False)
        columns["hot_lookup_ratio"] = [hot_lookup_ratio(one, two, table) for one, two in pairs]
        return columns, max(self._series.spacing, spacing)

    def _before(self, first: Point) -> Point | None:
        """Return the newest point before one, or None."""
        earlier = [point for point in self._series.points if point["step"] < first["step"]]
        return earlier[-1] if earlier else None


def hot_lookup_ratio(before: Point | None, now: Point, table: int) -> float | None:
    """Return the share of a table's lookups between two points that were hot."""
    lookups, hot = (now[name][table] - (before[name][table] if before else 0) for name in ("lookups", "lookups_hot"))
    return ratio(hot, lookups) if lookups > 0 and 0 <= hot <= lookups else None
