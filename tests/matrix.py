"""The axes of the product, stated once, and the cases that tests draw from them.

Two ways to draw cases. ``grid`` makes the product of a few axes of one test: cases in which every pair of values occurs run in
`make test`, all others in `make check`. ``cover`` makes cases of all axes of the product at once, pair by pair, without listing the
product. Cases that the product refuses are in ``REFUSED``, with the words of the refusal; a test holds each of them to that.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

Case = dict[str, Any]
Axes = Mapping[str, Sequence[Any]]

AXES: dict[str, tuple[Any, ...]] = {
    "policy": ("hybrid", "hotline", "device_only", "cdlrm", "oracle", "xdl", "fae", "fae_released", "slipstream", "random_skip",
               "adaptive", "slipstream_released"),
    "home": ("memory", "disk"),
    "device": ("direct", "late"),
    "ranks": (1, 2, 3),
    "loop": ("runtime", "own"),
    "ids": ("rows", "raw"),
    "precision": ("float64", "float32", "bf16"),
    "optimizer": ("sgd", "rowwise_adagrad", "adagrad", "lazy_adam"),
    "bags": ("one-hot", "sum", "mean"),
}  # fmt: skip
"""Policy; where cold rows lie; the CPU, or a made-up device whose work is late; processes; whose loop trains; ids that are rows, or
raw ones that get rows; numbers of rows (bf16: rows of 16 bits, the rest of 32); update rule of rows; lookups of a bag. A real
device stands beside "late" where tests are marked `gpu`."""


def pairs_of(case: Mapping[str, Any]) -> set[frozenset[tuple[str, Any]]]:
    """Return all pairs of values of a case."""
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}


# The product of a few axes -----------------------------------------------------------------------------------------------


def product(axes: Axes, possible: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    cases = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [case for case in cases if possible(case)]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """Choose some of the cases such that every pair of values that is in one of them is in a chosen one; greedily."""
    left = [(case, {(a, repr(x), b, repr(y)) for (a, x), (b, y) in itertools.combinations(case.items(), 2)}) for case in cases]
    wanted: set[Any] = set().union(*(pairs for _, pairs in left))
    chosen = []
    while wanted:
        best = max(range(len(left)), key=lambda number: len(left[number][1] & wanted))
        chosen.append(left[best][0])
        wanted -= left[best][1]
    return chosen


def each(cases: Sequence[Case]) -> list[Case]:
    """Choose some of the cases such that every value that is in one of them is in a chosen one; greedily."""
    wanted = {(axis, repr(value)) for case in cases for axis, value in case.items()}
    chosen = []
    while wanted:
        gains = [len({(axis, repr(value)) for axis, value in case.items()} & wanted) for case in cases]
        case = cases[gains.index(max(gains))]
        chosen.append(case)
        wanted -= {(axis, repr(value)) for axis, value in case.items()}
    return chosen


def name(value: Any) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")


def grid(
    possible: Callable[[Case], bool] = lambda case: True,
    keep: Callable[[Sequence[Case]], list[Case]] = pairwise,
    indirect: Sequence[str] = (),
    /,
    **axes: Sequence[Any],
) -> pytest.MarkDecorator:
    """Parametrize a test by the product of axes. What `keep` chooses runs in `make test`, the rest in `make check`.

    A value may be a ``pytest.param``, whose marks its cases get. Cases marked `gpu` are all kept: a device is not often there.
    """
    bare = {axis: [_bare(value) for value in values] for axis, values in axes.items()}
    marks_of = {(axis, repr(_bare(value))): value.marks for axis, values in axes.items() for value in values if _marked(value)}
    cases = [(case, _marks(case, marks_of)) for case in product(bare, possible)]
    chosen = keep([case for case, marks in cases if not marks])
    found = []
    for case, marks in cases:
        slow = [] if marks or case in chosen else [pytest.mark.slow]
        found.append(pytest.param(*case.values(), id="-".join(map(name, case.values())), marks=[*marks, *slow]))
    return pytest.mark.parametrize(tuple(axes), found, indirect=list(indirect))


def _marked(value: Any) -> bool:
    return hasattr(value, "marks") and hasattr(value, "values")


def _bare(value: Any) -> Any:
    return value.values[0] if _marked(value) else value


def _marks(case: Case, marks_of: Mapping[tuple[str, str], Any]) -> list[Any]:
    return [mark for axis, value in case.items() for mark in marks_of.get((axis, repr(value)), ())]
