"""Whether a process stays as large as it is: readings from /proc over time, and the judgement on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

MIB = 1 << 20
GROWTH_RATIO, GROWTH_BYTES = 0.02, 16 * MIB
"""What memory may grow by over the time judged: the larger of the two."""
WARM_UP = 1 / 3
"""Share of the time that is not judged."""
MEMORY, COUNTS = ("rss", "anonymous"), ("fds", "threads")


@dataclass(frozen=True)
class Reading:
    """What a process holds at a moment."""

    seconds: float
    rss: int
    anonymous: int
    fds: int
    threads: int

    def __str__(self) -> str:
        memory = f"{self.rss / MIB:7.1f} MiB ({self.anonymous / MIB:7.1f} anonymous)"
        return f"{memory} {self.fds:4} fds {self.threads:3} threads"


def read(pid: int, seconds: float) -> Reading:
    """Raises OSError where there is no such process, and LookupError where it has just ended."""
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fields = {name: rest.split() for name, _, rest in lines}
    rss, anonymous = (int(fields[name][0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return Reading(seconds, rss, anonymous, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"][0]))


def least(readings: Sequence[Reading]) -> Reading:
    """The least of each in readings close to each other, at the time of the last."""
    values = {name: min(getattr(reading, name) for reading in readings) for name in (*MEMORY, *COUNTS)}
    return replace(readings[-1], **values)


@dataclass(frozen=True)
class Trend:
    name: str
    growth: float
    bound: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.bound

    def __str__(self) -> str:
        unit, text = (MIB, " MiB") if self.name in MEMORY else (1, "")
        verdict = "flat" if self.flat else "GROWS"
        return f"{self.name} {self.growth / unit:+.2f}{text} of at most {self.bound / unit:.2f}: {verdict}"


def slope(seconds: Sequence[float], values: Sequence[float]) -> float:
    """Median of the slopes between any two points (Theil and Sen): a third of the points may be anything."""
    x, y = np.asarray(seconds, dtype=float), np.asarray(values, dtype=float)
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] - x[i]
    return float(np.median((y[j] - y[i])[apart > 0] / apart[apart > 0])) if (apart > 0).any() else 0.0


def judge(readings: Sequence[Reading], names: Sequence[str] = (*MEMORY, *COUNTS)) -> list[Trend]:
    """How each of these grew after the warm-up. Memory: the robust slope times the time judged. Counts: the median of the second
    half less that of the first, which may not be above 0."""
    assert readings, "nothing was read"
    first, last = readings[0].seconds, readings[-1].seconds
    judged = [reading for reading in readings if reading.seconds >= first + WARM_UP * (last - first)]
    middle = (judged[0].seconds + last) / 2
    trends = []
    for name in names:
        values = [float(getattr(reading, name)) for reading in judged]
        if name in MEMORY:
            growth = slope([reading.seconds for reading in judged], values) * (last - judged[0].seconds)
            trends.append(Trend(name, growth, max(GROWTH_RATIO * values[0], GROWTH_BYTES)))
        else:
            early = [v for v, reading in zip(values, judged, strict=True) if reading.seconds <= middle]
            late = [v for v, reading in zip(values, judged, strict=True) if reading.seconds >= middle]
            trends.append(Trend(name, float(np.median(late) - np.median(early)), 0.0))
    return trends


def flat(readings: Sequence[Reading], names: Sequence[str] = (*MEMORY, *COUNTS)) -> bool:
    return all(trend.flat for trend in judge(readings, names))
