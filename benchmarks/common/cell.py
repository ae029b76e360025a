"""A cell of a benchmark: contestants that take turns on the same batches."""

from __future__ import annotations

from dataclasses import dataclass


class Absent(Exception):
    """Something that a cell needs is missing; the message names it."""


@dataclass(frozen=True)
class Cell:
    """Contestants that take turns on the same batches."""

    name: str
    about: str = ""
    contestants: tuple[str, ...] = ()
    kind: str = "step"
    """What a turn is, where a bench has several kinds of cells."""
    shape: str = "kaggle"
    settings: tuple[str, ...] = ()
    steps: int = 2
    """Steps of a turn."""
    batches: int = 100
    """The number of batches; they are used round and round."""
    data: str = ""
    """The click log whose samples are trained; empty: synthetic ones."""
    rows_ratio: float = 0.05
    """Share of all rows that fits the hot tier, or memory."""
    briefly: bool = True
    """Whether OpenMP's threads wait briefly, as under our command line, or as by default, as for users of rivals."""
