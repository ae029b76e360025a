"""The axes of the product, stated once, and the cases that tests draw from them.

Two ways to draw cases. ``grid`` makes the product of a few axes of one test: cases in which every pair of values occurs run in
`make test`, all others in `make check`. ``cover`` makes cases of all axes of the product at once, pair by pair, without
listing the product. Cases that the product refuses are in ``REFUSED``, with the words of the refusal; tests of modules hold a
loop of one's own to them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from adaptive_rec.kernels.update_rules import NAMED_RULES

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
    "optimizer": tuple(NAMED_RULES),
    "bags": ("one-hot", "sum", "mean"),
}  # fmt: skip
"""Policy; where cold rows lie; the CPU, or a made-up device whose work is late; processes; whose loop trains; ids that are
rows, or raw ones that get rows; numbers of rows (bf16: rows of 16 bits, the rest of 32); update rule of rows; lookups of a
bag. A real device stands beside "late" where tests are marked `gpu`."""


REORDERING = ("fae", "fae_released", "slipstream_released")
"""Policies that reorder the stream."""

ARRANGING = (*REORDERING, "cdlrm", "oracle", "xdl")
"""Policies that arrange the stream, or keep tables by themselves."""

SKIPPING = ("slipstream", "random_skip", "adaptive")
"""Policies that skip under some knobs, and leave the stream and the tables as they are."""

REFUSED: list[tuple[dict[str, tuple[Any, ...]], str]] = [
    ({"loop": ("own",), "policy": ARRANGING}, r"policy must "),
    ({"loop": ("own",), "policy": SKIPPING, "ranks": (2, 3)}, r"policy must skip no work"),
]
"""Cells that the product refuses: values of some axes, and words of the refusal."""

OWN_LOOP = ("policy", "home", "ranks", "optimizer")
"""Axes whose pairs the cells of a loop of one's own cover."""

OWN_LOOP_ELSEWHERE = {
    "device": "modules/test_device.py", "ids": "modules/test_raw_ids.py", "precision": "modules/test_rows_of_16_bits.py",
    "bags": "modules/test_bag.py",
}  # fmt: skip
"""The other axes, which tests of modules drive one by one."""

SUITES = ("parity", "policies", "checkpoint", "runtime")
"""Folders with a file ``test_cells.py``. Each runs a part of the cover in `make test`, so that every possible pair is run
once there, and the whole cover, with others drawn from the product, in `make check`."""

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(case: Case) -> set[Pair]:
    """Return all pairs of values of a case."""
    return set(itertools.combinations(case.items(), 2))


def refusal_of(case: Case) -> str | None:
    """Return the words with which the product refuses a case, or a part of one; None where it does not."""
    for values, words in REFUSED:
        if all(axis in case and case[axis] in some for axis, some in values.items()):
            return words
    return None


def completed(given: Case, wanted: Collection[Pair] = (), axes: Axes = AXES) -> Case | None:
    """Complete a part of a case with values of the other axes, such that it has many of the wanted pairs; None where none can."""
    if refusal_of(given) is not None:
        return None
    left = [axis for axis in axes if axis not in given]
    if not left:
        return {axis: given[axis] for axis in axes}

    def gain(value: Any) -> int:
        whole = {**given, left[0]: value}
        ordered = {axis: whole[axis] for axis in axes if axis in whole}
        return len(pairs_of(ordered) & set(wanted))

    for value in sorted(axes[left[0]], key=lambda value: -gain(value)):
        found = completed({**given, left[0]: value}, wanted, axes)
        if found is not None:
            return found
    return None


def possible_pairs(axes: Axes = AXES) -> set[Pair]:
    """Return the pairs of values that some case which is not refused has."""
    pairs = (
        ((a, x), (b, y)) for a, b in itertools.combinations(axes, 2) for x, y in itertools.product(axes[a], axes[b])
    )
    return {pair for pair in pairs if completed(dict(pair), (), axes) is not None}


@cache
def cover(loop: str = "runtime") -> list[Case]:
    """Return cases of a loop in which every possible pair of values of its axes occurs; the same ones in each process."""
    of_loop = list(AXES) if loop == "runtime" else ["loop", *OWN_LOOP]
    axes = {axis: AXES[axis] for axis in AXES if axis in of_loop} | {"loop": (loop,)}
    wanted, chosen = possible_pairs(axes), []
    while wanted:
        case = completed(dict(min(wanted, key=repr)), wanted, axes)
        assert case is not None
        chosen.append(case)
        wanted -= pairs_of(case)
    return chosen


def share(suite: str) -> list[Case]:
    """Return the cases of the runtime's cover that a suite runs in `make test`: as many of each number of ranks as another's."""
    ordered = sorted(cover(), key=lambda case: (case["ranks"], case["home"], case["device"]))
    return ordered[SUITES.index(suite) :: len(SUITES)]


def left_to_check(suite: str) -> set[Pair]:
    """Return the possible pairs that a suite runs in `make check` only; other suites run them in `make test`."""
    own = set().union(*map(pairs_of, share(suite)))
    return set().union(*map(pairs_of, cover())) - own


def drawn(number: int, seed: int) -> list[Case]:
    """Draw cases of the runtime's product by a seed, none of which is refused."""
    dice, found = random.Random(seed), []
    while len(found) < number:
        case = {axis: dice.choice(values) for axis, values in AXES.items()} | {"loop": "runtime"}
        if refusal_of(case) is None:
            found.append(case)
    return found


def cells(suite: str) -> pytest.MarkDecorator:
    """Parametrize a test of a suite by its cases: its share of the cover, and in `make check` the rest and 100 drawn ones."""
    own = share(suite)
    cases = [*cover(), *drawn(100, SUITES.index(suite))]
    named = [pytest.param(case, id=title(case), marks=[] if case in own else [pytest.mark.slow]) for case in cases]
    return pytest.mark.parametrize("case", named)


def title(case: Case) -> str:
    return "-".join(name(value) for axis, value in case.items() if axis != "loop")


# The product of a few axes -----------------------------------------------------------------------------------------------


def always(case: Case) -> bool:
    """Any case is possible."""
    return True


def product(axes: Axes, possible: Callable[[Case], bool] = always) -> list[Case]:
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


def only(*values: Any) -> Callable[[Sequence[Case]], list[Case]]:
    """Choose the cases that have one of some values."""
    return lambda cases: [case for case in cases if any(value in case.values() for value in values)]


def name(value: Any) -> str:
    return str(getattr(value, "__name__", value)).removeprefix("torch.")


def grid(
    possible: Callable[[Case], bool] = always,
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
