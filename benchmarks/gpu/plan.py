"""The cells of `gpu-first` and of `gpu-all`, and how the time is shared among them. Loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common.cell import Cell


@dataclass(frozen=True)
class GpuCell(Cell):
    """Its kind is steps, tests, warm, ceilings, comparison, timeline or memory."""

    seconds: float = 60.0
    """What it may take, its process's start included."""
    least_seconds: float = 20.0
    """With less left it is not begun."""
    batch_size: int = 2048
    rule: str = "rowwise_adagrad"
    preloaded: bool = False
    rows_ratio: float = 0.1
    """Budget: the share of all rows that the device tier holds."""
    budget_rule: str = ""
    """Update rule by whose bytes of a row the budget is reckoned, the same for all contestants; empty: by their own."""
    part: int = 0
    """Of `gpu-first`, from 1 on; 0 in `gpu-all`."""
    blocking: bool = False
    """Whether each launch is waited for, so that a fault is reported where it is."""
    compiles: tuple[tuple[str, str], ...] = ()
    """Cells still to come and one of their contestants each, whose kernels are compiled."""


RIVALS = ("plain", "plain_device", "fbgemm", "fbgemm_device", "torchrec")
ALL_POLICIES = (
    "plain", "hotline", "device_only", "hotline/never", "slipstream:freeze", "slipstream:subsample", "hybrid", *RIVALS[1:],
)  # fmt: skip
"""The most important first: with too little time the last ones are left out."""

NEVER = ("hotline/never",)
TRAINING = ("comparison", "timeline", "memory")
"""Kinds of cells that train against the clock."""

OPTIONAL = ("fbgemm", "fbgemm_device", "torchrec")
"""Take part where they can; that they cannot is no failure."""

FEW = ("plain", "hotline", "device_only", "slipstream:freeze")
OPTIMIZERS = ("hotline+sgd", "hotline+rowwise_adagrad", "hotline+lazy_adam", "device_only+lazy_adam", "plain+lazy_adam")
WAYS = tuple(
    f"hotline/never@{way}"
    for way in (
        "run.classify=host", "run.classify=device", "run.cold_rows=staged", "run.cold_rows=direct",
        "run.cold_rows=in_place,run.classify=device", "run.row_precision=bf16",
        "run.precision=tf32", "run.precision=bf16", "knobs.prefetch_depth=8,run.classify_threads=8",
    )
)  # fmt: skip
"""The same policy, done in other ways: what `auto` chooses should be no slower than what it does not."""
RARELY = "hotline/never@knobs.sample_ratio=0.1,knobs.reclassify_every=500"
"""The host's work beside the steps, a fifth of the default: counting lookups, and finding at the end of a window what is hot."""
IN_PLACE = "hotline/never@run.cold_rows=in_place,run.classify=device"
"""The least work of the host for a batch; what crosses the bus is waited for."""
FIRST_CONTESTANTS = (
    "plain", "hotline/never", "device_only", "fbgemm", IN_PLACE, RARELY, "fbgemm_device", "plain_device", "torchrec", "hotline",
)  # fmt: skip

MAIN_RULE = "rowwise_adagrad"



def _cell(name: str, kind: str, seconds: float, least_seconds: float = 20.0, **more: Any) -> GpuCell:
    return GpuCell(name, kind=kind, seconds=seconds, least_seconds=least_seconds, **more)


TESTS = _cell("tests", "tests", 150, 30)
WARM = _cell("warm", "warm", 22, 8)
"""Before the first cell of `gpu-first` that trains against the clock."""
CEILINGS = _cell("ceilings", "ceilings", 20, 8)
TIMELINE = _cell("timeline", "timeline", 34, 22, contestants=("hotline/always", "hotline/never"))


def _preloaded(shape: str, batch_size: int, seconds: float, part: int) -> GpuCell:
    name = f"{shape}-{batch_size}-10pc-preloaded"
    more = {"shape": shape, "batch_size": batch_size, "preloaded": True, "contestants": FIRST_CONTESTANTS, "part": part}
    return _cell(name, "comparison", seconds, 30, **more)


FIRST = (
    _cell("steps-eager", "steps", 40, 12, part=1, blocking=True),
    _cell("steps-recorded", "steps", 25, 12, part=1),
    replace(TESTS, part=1),
    replace(CEILINGS, part=2),
    _preloaded("kaggle", 2048, 60, 2),
    _preloaded("kaggle", 16384, 50, 2),
    replace(TIMELINE, part=2),
    _preloaded("mlperf", 2048, 50, 3),
    _preloaded("mlperf", 16384, 60, 3),
    _cell("kaggle-2048-10pc-rules", "comparison", 35, 25, preloaded=True, budget_rule=MAIN_RULE, contestants=OPTIMIZERS, part=3),
    _cell("memory", "memory", 20, 15, contestants=("slipstream:freeze",), part=3),
)
"""`gpu-first`: whether it runs, whether it is right, what it costs. Batches are preloaded: else the generator is measured."""
PART_SECONDS = {1: 216.0, 2: 186.0, 3: 186.0}
"""Each part stands alone, and all of them together end before 10 minutes are over."""

MOST_STRETCH = 1.5
"""Time that earlier cells left over goes to the later ones, up to so many times their own."""


def share(cells: Sequence[Cell], left: float, stretches: bool = True) -> float:
    """Return the seconds for the first of some cells, of those left for all of them; 0 where that is too little to begin.
    `stretches`: whether it may take more or less than its own."""
    planned = [cell.seconds for cell in cells if isinstance(cell, GpuCell)]
    if not stretches:
        return planned[0] if planned[0] <= left else 0.0
    seconds = min(left, planned[0] * min(MOST_STRETCH, left / sum(planned)))
    assert isinstance(cells[0], GpuCell)
    return seconds if seconds >= min(cells[0].least_seconds, planned[0]) else 0.0


Groups = tuple[tuple[str, ...], ...]
KAGGLE_GROUPS: Groups = (ALL_POLICIES,)
MLPERF_GROUPS: Groups = (
    FEW,
    ("device_only", "hotline/never", "slipstream:subsample", "hybrid", "fbgemm"),
    ("device_only", "fbgemm_device", "plain_device", "torchrec"),
)
MLPERF_ADAM_GROUPS: Groups = (
    ("plain", "hotline", "device_only"),
    ("device_only", "hotline/never", "slipstream:freeze"),
    ("device_only", "slipstream:subsample", "hybrid"),
)
"""Contestants of a cell hold their tables in host memory at once. What does not fit beside each other gets a cell of its own,
with `device_only` in each; FBGEMM, TorchRec and torch's tables on the device are left out under Adam on this shape."""

WITHOUT_BUDGET = ("hybrid", "plain_device", "fbgemm_device", "torchrec")
"""Have no budget, so they are measured at 10 % only."""


def all_cells() -> tuple[GpuCell, ...]:
    """Every shape, batch size, budget, rule and way of loading; hours, to be taken up again at will."""
    cells = [replace(TESTS, seconds=600), replace(CEILINGS, seconds=30)]
    for shape in ("kaggle", "mlperf4m"):
        for batch_size in (2048, 16384):
            for rule in (MAIN_RULE, "lazy_adam"):
                for preloaded in (False, True):
                    for ratio in (0.10, 0.01, 0.25):
                        cells += _group_cells(shape, batch_size, rule, preloaded, ratio)
    for shape in ("kaggle", "mlperf"):
        name, preloaded = f"{shape}-2048-10pc-rules", shape != "kaggle"
        cells.append(
            _cell(
                name, "comparison", 120, shape=shape, preloaded=preloaded, budget_rule=MAIN_RULE, contestants=OPTIMIZERS
            )
        )
    for shape, batch_size in (("kaggle", 2048), ("kaggle", 16384), ("mlperf", 2048), ("mlperf", 16384)):
        name = f"{shape}-{batch_size}-10pc-ways"
        ways = ("hotline/never", *WAYS)
        cells.append(_cell(name, "comparison", 60, shape=shape, batch_size=batch_size, preloaded=True, contestants=ways))
    timelines = ("hotline/always", "hotline/never", "slipstream:freeze", "device_only")
    cells += [
        _cell("timeline", "timeline", 90, contestants=timelines),
        _cell("timeline-16384", "timeline", 150, batch_size=16384, contestants=timelines),
        _cell("timeline-mlperf-16384", "timeline", 45, shape="mlperf", batch_size=16384, preloaded=True, contestants=NEVER),
        _cell("timeline-mlperf4m", "timeline", 200, shape="mlperf4m", preloaded=True, contestants=timelines),
        _cell("memory", "memory", 640, contestants=("slipstream:freeze",)),
    ]
    return tuple(cells)


def _group_cells(shape: str, batch_size: int, rule: str, preloaded: bool, ratio: float) -> list[GpuCell]:
    groups = KAGGLE_GROUPS
    if shape != "kaggle":
        # With two moments for each component, tables have to be cut shorter for several runs to fit host memory at once.
        shape, groups = ("mlperf", MLPERF_ADAM_GROUPS) if rule == "lazy_adam" else (shape, MLPERF_GROUPS)
    cells = []
    for number, group in enumerate(groups):
        names = tuple(name for name in group if ratio == 0.10 or name not in WITHOUT_BUDGET)
        ending = ("-preloaded" if preloaded else "") + (f"-{number + 1}" if number else "")
        name = f"{shape}-{batch_size}-{100 * ratio:.0f}pc-{rule}{ending}"
        cells.append(
            _cell(name, "comparison", 90, shape=shape, batch_size=batch_size, rule=rule, preloaded=preloaded,
                 rows_ratio=ratio, contestants=names)
        )  # fmt: skip
    return cells


def rehearsed(cell: Cell) -> GpuCell:
    """The same cell on a tiny shape, a second: whether everything runs, and no figure of anything."""
    assert isinstance(cell, GpuCell)
    shape = "tiny" if cell.shape == "kaggle" else "tiny_bags"
    return replace(cell, seconds=1.0, least_seconds=0.0, shape=shape, batch_size=64 if cell.batch_size == 2048 else 96)


def warmed(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The same cells, with one that compiles for all of them before the first that trains against the clock."""
    first: dict[tuple[object, ...], tuple[str, str]] = {}
    training = [cell for cell in cells if isinstance(cell, GpuCell) and cell.kind in TRAINING]
    for cell in training:
        for name in cell.contestants:
            if name.partition("+")[0] not in RIVALS:
                first.setdefault((name, cell.shape, cell.batch_size, cell.rule, cell.preloaded), (cell.name, name))
    if not first:
        return cells
    at = cells.index(training[0])
    return (*cells[:at], replace(WARM, part=training[0].part, compiles=tuple(first.values())), *cells[at:])


def seconds_of(cells: Sequence[Cell], args: argparse.Namespace) -> float:
    """Time for all cells together."""
    if args.seconds:
        return float(args.seconds)
    parts = {cell.part for cell in cells if isinstance(cell, GpuCell)}
    return float("inf") if args.all or args.rehearse else sum(PART_SECONDS[part] for part in parts)
