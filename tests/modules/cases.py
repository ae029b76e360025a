"""Cases of one test: several in a loop whose failures are named, pairs of axes in turn, few steps or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

from tests.matrix import Case, name, product

T = TypeVar("T")


def failures(values: Iterable[T], check: Callable[[T], object]) -> dict[T, str]:
    """Check all values, and return what is wrong by value: a test asserts that it is empty."""
    found = {}
    for value in values:
        try:
            check(value)
        except (Exception, pytest.fail.Exception) as error:
            found[value] = f"{type(error).__name__}: {error}"
    return found


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """For ``grid``: choose each value of the longest axis once, with the values of the others in turn."""
    values: dict[str, list[Any]] = {axis: [] for axis in cases[0]}
    for case in cases:
        for axis, value in case.items():
            if value not in values[axis]:
                values[axis].append(value)
    longest = max((len(each) for each in values.values()), default=1)
    turns = [{axis: each[number % len(each)] for axis, each in values.items()} for number in range(longest)]
    return [case for case in cases if case in turns]


def few_or_many_steps(
    few: int, many: int, keep: Callable[[Sequence[Case]], list[Case]] = in_turn, /, **axes: Iterable[Any]
) -> pytest.MarkDecorator:
    """Parametrize a test by axes and `steps`: few for what `keep` chooses in `make test`, many for all in `make check`."""
    cases = product({axis: list(each) for axis, each in axes.items()})
    sizes = [(case, few) for case in keep(cases)] + [(case, many) for case in cases]
    found = [
        pytest.param(
            *case.values(), steps, id="-".join(map(name, (*case.values(), steps))),
            marks=[] if steps == few else pytest.mark.slow,
        )
        for case, steps in sizes
    ]  # fmt: skip
    return pytest.mark.parametrize((*axes, "steps"), found)
