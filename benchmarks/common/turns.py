"""Turns of contestants on the same batches, in an order drawn for each round, and the comparison of their results."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.placement import RowSpace

SEED = 20261121
"""The seed of the order of turns."""


class Clock:
    """What the turns of a process are timed by."""

    def __init__(self) -> None:
        self.by_processor = False
        """Whether the processor time of all threads counts, not the time that passes: for machines on which other work runs."""

    def __call__(self) -> float:
        return time.process_time() if self.by_processor else time.perf_counter()


CLOCK = Clock()


@dataclass
class Turn:
    """The seconds of a turn, by stage, and the counters it added."""

    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gained: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The clock runs inside of stages only."""
        began = CLOCK()
        yield
        took = CLOCK() - began
        self.stages[name] += took
        self.seconds += took


class RoundAndRound:
    """A contestant that trains on the same batches, round and round."""

    about = ""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.steps, self.batches = 0, batches

    def step(self, turn: Turn, batch: Any) -> None:
        """Train on a batch, in stages of the turn."""
        raise NotImplementedError

    def turn(self, steps: int) -> Turn:
        turn = Turn()
        for _ in range(steps):
            self.step(turn, self.batches[self.steps % len(self.batches)])
            self.steps += 1
        return turn

    def mean_loss(self) -> float:
        return 0.0

    def facts(self) -> dict[str, Any]:
        return {"about": self.about}

    def close(self) -> None: ...


def take_turns(
    contestants: dict[str, Any], rounds: int, steps: int | dict[str, int], note: Callable[[str], None] | None = None,
    ends: float = math.inf,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of a step in each round, their median and mean, and by stage, for each contestant. `steps`: of a turn. After the
    first, a round is made only where it is over before `ends`, by time.perf_counter, if it takes as long as those before it."""
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    each = dict.fromkeys(contestants, steps) if isinstance(steps, int) else steps
    dice, names = np.random.default_rng(SEED), list(contestants)
    gc.collect()
    began = time.perf_counter()
    for number in range(rounds):
        now = time.perf_counter()
        if number and now + (now - began) / number > ends:
            break
        for place in dice.permutation(len(names)):
            name = names[place]
            turns[name].append(contestants[name].turn(each[name]))
        if note is not None:
            last = ", ".join(f"{name} {1e3 * turns[name][-1].seconds / each[name]:.0f}" for name in names)
            note(f"round {number + 1} of {rounds}: ms: {last}")
    return {name: {**summary(turns[name], each[name]), "facts": contestants[name].facts()} for name in names}


def summary(turns: list[Turn], steps: int) -> dict[str, Any]:
    seconds = [turn.seconds / steps for turn in turns]
    stages = {name for turn in turns for name in turn.stages}
    gains = {name for turn in turns for name in turn.gained}
    return {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "mean": statistics.fmean(seconds),
        "stages": {name: statistics.median(turn.stages[name] / steps for turn in turns) for name in sorted(stages)},
        "gained": {name: [turn.gained[name] for turn in turns] for name in sorted(gains)},
    }


# Agreement -----------------------------------------------------------------------------------------------------------


def touched_rows(batches: Sequence[Batch], space: RowSpace) -> list[NDArray[np.int64]]:
    """Ids of each table that some batches look up."""
    features = len(space.features)
    found: list[list[NDArray[np.int64]]] = [[] for _ in space.tables]
    for batch in batches:
        feature_N = np.repeat(np.arange(len(batch.offsets) - 1) % features, np.diff(batch.offsets))
        for feature, spec in enumerate(space.features):
            found[spec.table].append(np.unique(batch.ids_N[feature_N == feature]).astype(np.int64))
    return [np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64) for parts in found]


Rows = list[NDArray[Any]]


def rows_of(contestant: Any, touched: list[NDArray[np.int64]]) -> Rows:
    return [contestant.rows(table, ids) for table, ids in enumerate(touched)]


def _distance(mine: Rows, theirs: Rows, norm: float) -> float:
    parts = [
        float(np.linalg.norm((a.astype(np.float64) - b).ravel(), norm)) if a.size else 0.0
        for a, b in zip(mine, theirs, strict=True)
    ]
    return float(np.linalg.norm(parts, norm))


def check(
    name: str, mine: tuple[float, Rows], theirs: tuple[float, Rows], first: Rows, bounds: tuple[float, float, float]
) -> list[dict[str, Any]]:
    """Mean losses and rows after the same steps from the same rows `first`.

    The difference of rows is a share of their movement since `first`, by the norm that the third bound names.
    """
    moved, apart = (_distance(mine[1], rows, bounds[2]) for rows in (first, theirs[1]))
    losses = abs(mine[0] - theirs[0]) / max(abs(theirs[0]), 1e-30) if mine[0] or theirs[0] else 0.0
    found = {"loss": (losses, bounds[0]), "rows": (apart / moved if moved else float("inf"), bounds[1])}
    return [
        {"check": f"{name}: {what}", "difference": difference, "bound": limit, "passed": bool(difference <= limit)}
        for what, (difference, limit) in found.items()
    ]


def first_turns(
    contestants: dict[str, Any],
    comparable: list[str],
    touched: list[NDArray[np.int64]],
    first: Rows,
    steps: int,
    bounds_of: Callable[[str], tuple[float, float, float]],
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Take the first turn of each contestant, from the same rows on the same batches, and compare those who make the same updates
    with the first of them."""
    found: list[dict[str, Any]] = []
    reference: tuple[float, Rows] | None = None
    for name, contestant in contestants.items():
        contestant.turn(steps)
        if name not in comparable:
            continue
        outcome = contestant.mean_loss(), rows_of(contestant, touched)
        if reference is None:
            reference = outcome
            continue
        found += check(name, outcome, reference, first, bounds_of(name))
    for one in found:
        if not one["passed"]:
            note(f"DISAGREES {one['check']}: {one['difference']:.3g} over {one['bound']:.3g}")
    return found


def agree(
    made: dict[str, Any],
    comparable: list[str],
    source: Any,
    steps: int,
    bounds_of: Callable[[str], tuple[float, float, float]],
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The same, of the rows that the first steps look up in batches that lie in memory."""
    touched = touched_rows(source.batches[:steps], RowSpace.of(source.tables, source.features))
    first = rows_of(made[comparable[0]], touched) if comparable else []
    found = first_turns(made, comparable, touched, first, steps, bounds_of, note)
    note(f"{len(found)} results compared")
    return found
