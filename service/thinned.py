"""Points of a curve in bounded memory."""

from __future__ import annotations

from typing import Any

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
