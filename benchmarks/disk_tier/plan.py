"""What is measured: cells, their contestants, and the bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.common.results import bar
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.disk_tier.setup import ALL_COUNTED, ARRAYS, BAGS, IN_MEMORY, OURS, PLAIN_ZIPF, RIVALS, ROCKS

NOTHING_AHEAD, AHEAD, POPULAR_FIRST, FREEZE = "nothing ahead", "look-ahead", "+ popular first", "+ freeze"
_SPLIT = ("run.split=always",)
_FREEZE = (*_SPLIT, "knobs.policy=slipstream", "knobs.action=freeze")


@dataclass(frozen=True)
class Cell:
    """Contestants that take turns."""

    name: str
    about: str
    rows_ratio: float
    """Part of all rows that has room in memory."""
    contestants: tuple[tuple[str, tuple[str, ...]], ...]
    """Names and settings. The first one with rows on a disk sets the limit of all of them."""
    shape: str = "kaggle"
    data: str = ""
    """The prepared data set that it trains on; empty for synthetic samples."""
    settings: tuple[str, ...] = (PLAIN_ZIPF, ALL_COUNTED)


def _against_rivals(ratio: float) -> Cell:
    names = (OURS, IN_MEMORY, *RIVALS)
    return Cell(
        f"{ratio:.0%}".replace("%", "-percent"),
        f"{ratio:.0%} of the rows in memory",
        ratio,
        tuple((n, ()) for n in names),
    )


SHARES = (0.25, 0.10, 0.05)
MEMORY = tuple(_against_rivals(ratio) for ratio in SHARES)
ABLATION = Cell(
    "ablation",
    "what each part brings, 10 % of the rows in memory",
    0.10,
    (
        (AHEAD, ()),
        (NOTHING_AHEAD, ("knobs.prefetch_depth=0",)),
        (POPULAR_FIRST, _SPLIT),
        (FREEZE, _FREEZE),
        (IN_MEMORY, ()),
    ),
)
CRITEO = Cell(
    "criteo",
    "the Criteo sample, 10 % of the rows in memory",
    0.10,
    ((OURS, ()), (IN_MEMORY, ())),
    data="criteo",
    settings=("data.ids=auto", ALL_COUNTED),
)
GLOBO = Cell(
    "globo",
    "Globo's clicks, 10 % of the rows in memory",
    0.10,
    ((OURS, ()), (IN_MEMORY, ())),
    data="globo",
    settings=("data.ids=auto", ALL_COUNTED),
)
CELLS = (*MEMORY, ABLATION, CRITEO, GLOBO)

MOST_OF_STEP = {0.25: 1.12, 0.10: 1.25, 0.05: 1.5}
"""The longest step at each share of rows in memory, in steps of a run with all rows there."""

LEAST_OVER = {BAGS: 10.0, ARRAYS: 10.0, ROCKS: 3.0}
"""How many times as long as ours the steps of rivals must take at least."""

MOST_WAIT = 0.10
"""The largest part of a step that waits for the disk, on real samples."""


def bars(found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the bars of the cells that were measured."""
    for cell in MEMORY:
        runs = found.get(cell.name, {}).get("runs", {})
        if OURS not in runs:
            continue
        if IN_MEMORY in runs:
            yield _ratio(
                f"{cell.name}: step beside all in memory",
                runs[OURS],
                runs[IN_MEMORY],
                MOST_OF_STEP[cell.rows_ratio],
                False,
            )
        for rival, least in LEAST_OVER.items():
            if rival in runs:
                yield _ratio(f"{cell.name}: step of {rival} beside ours", runs[rival], runs[OURS], least, True)
    for cell in (CRITEO, GLOBO):
        if cell.name in found:
            yield bar(
                f"{cell.name}: wait for the disk, part of the step",
                found[cell.name]["runs"][OURS]["wait_ratio"],
                MOST_WAIT,
                False,
            )


def _ratio(what: str, over: dict[str, Any], under: dict[str, Any], bound: float, at_least: bool) -> dict[str, Any]:
    ratio = ratio_of_medians(over["seconds"], under["seconds"])
    return bar(what, ratio["ratio"], bound, at_least, [ratio["low"], ratio["high"]])
