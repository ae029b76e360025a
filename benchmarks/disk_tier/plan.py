"""What is measured: cells, their contestants, and the bars. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common.cell import Cell
from benchmarks.common.report import Found, ratio_bar, runs_of
from benchmarks.common.results import bar

IN_MEMORY, OURS, BEFORE = "all in memory", "ours", "ours, before"
BAGS, ARRAYS, ROCKS = "nn.EmbeddingBag over a map", "NumPy over a map", "RocksDB"
ADVISED = ", MADV_RANDOM"
"""What the name of a rival ends with that has told the system to read no neighbours of the pages in use."""
PLAIN_MAPS = (BAGS, ARRAYS)
RIVALS = (*PLAIN_MAPS, BAGS + ADVISED, ARRAYS + ADVISED, ROCKS)

NOTHING_AHEAD, AHEAD, POPULAR_FIRST, FREEZE = "ours, nothing ahead", "ours, look-ahead", "ours + popular first", "ours + freeze"
SETTINGS: dict[str, tuple[str, ...]] = {
    NOTHING_AHEAD: ("knobs.prefetch_depth=0",),
    POPULAR_FIRST: ("run.split=always",),
    FREEZE: ("run.split=always", "knobs.policy=slipstream", "knobs.action=freeze"),
}
"""What runs of ours are set to beside the cell's settings."""

PLAIN_ZIPF = "data.synthetic.popular_ratio=0"
ALL_COUNTED = "knobs.sample_ratio=1"
"""All lookups are counted, so that rows find their places in fewer steps."""
MOST_OF_STEP = {"25-percent": 1.12, "10-percent": 1.15, "5-percent": 1.5}
"""The longest step at each share of rows in memory, in steps of a run with all rows there."""
LEAST_OVER = {BAGS: 10.0, ARRAYS: 10.0, ROCKS: 3.0}
"""How many times as long as ours the steps of rivals must take at least."""
MOST_WAIT = 0.10
"""The largest part of a step that waits for the disk, on real samples."""


@dataclass(frozen=True)
class Setup:
    """A contestant."""

    name: str
    """IN_MEMORY, a name of RIVALS, or any other one for a run of ours with rows on a disk."""
    shape: str
    data: str
    """Folder of prepared samples or a Criteo file; empty for synthetic samples."""
    batch_size: int
    rows_ratio: float
    """Part of all rows, with their optimizer state, that has room in memory."""
    settings: tuple[str, ...]
    folder: str
    """Where its rows lie on the disk."""


def _cell(name: str, about: str, ratio: float, contestants: tuple[str, ...], data: str = "") -> Cell:
    """The first contestant with rows on a disk sets the limit of all of them."""
    settings = ("data.ids=auto" if data else PLAIN_ZIPF, ALL_COUNTED)
    whole = f"{about}, {ratio:.0%} of the rows in memory"
    return Cell(name, whole, contestants, rows_ratio=ratio, data=data, settings=settings)


CELLS = (
    *(
        _cell(f"{100 * ratio:.0f}-percent", "synthetic samples", ratio, (OURS, IN_MEMORY, *RIVALS))
        for ratio in (0.25, 0.10, 0.05)
    ),
    _cell("ablation", "what each part brings", 0.10, (AHEAD, NOTHING_AHEAD, POPULAR_FIRST, FREEZE, IN_MEMORY)),
    _cell("criteo", "the Criteo sample", 0.10, (OURS, IN_MEMORY), "criteo_kaggle_sample_137k.tsv.zst"),
    _cell("globo", "Globo's clicks", 0.10, (OURS, IN_MEMORY), "globo_clicks_2988181.csv.zst"),
)


def rehearsed(cell: Cell) -> Cell:
    return replace(cell, shape="tiny")


def bars(found: Found) -> Iterator[dict[str, Any]]:
    """Yield the bars of the cells that were measured."""
    for name, most in MOST_OF_STEP.items():
        runs = runs_of(found, name)
        if OURS in runs and IN_MEMORY in runs:
            yield ratio_bar(f"{name}: step beside all in memory", runs[OURS], runs[IN_MEMORY], most, False)
        for rival, least in LEAST_OVER.items():
            if OURS in runs and rival in runs:
                yield ratio_bar(f"{name}: step of {rival} beside ours", runs[rival], runs[OURS], least, True)
    for name in ("criteo", "globo"):
        if OURS in (runs := runs_of(found, name)):
            wait = runs[OURS]["facts"]["part of the step that waits for the disk"]
            yield bar(f"{name}: wait for the disk, part of the step", wait, MOST_WAIT, False)
