"""The cells: an update rule or a shape of bags each, with all that takes turns at it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from adaptive_rec.placement import RowSpace
from benchmarks.common.contestants import budget_bytes
from benchmarks.common.shapes import SHAPES, configure, open_shape, preload
from benchmarks.cpu.cells import HOT_RATIO, Note, finish
from benchmarks.cpu.contestants import OurRun, first_rows
from benchmarks.cpu.plan import CUT, CUT_SHORT, MLPERF, Cell
from benchmarks.cpu.rivals import why_absent
from benchmarks.cpu.turns import first_turns, rows_of, touched_rows
from benchmarks.drop_in.contestants import (
    Announced,
    bag_items,
    collection_loop,
    foretell_bags,
    jagged_items,
    plain_loop,
    torchrec_loop,
    wrapped_loop,
)

TRAIN, WRAPPED, IN_LINE, COLLECTION = "adaptive-rec train", "wrapped, prefetch", "wrapped", "collection, prefetch"
PLAIN, TORCHREC = "nn.EmbeddingBag", "TorchRec"
KAGGLE = "Criteo Kaggle's 26 tables of dim 16, synthetic one-hot batches of 2048, policy hotline with room for 5 % of the rows"
ROWS_BOUND, BOUNDS = 1e-5, {"sgd": 1e-2, "adagrad": 5e-3}
"""Of rows after the first turn, as a share of their movement. SGD's first steps are so short that float32 rounds them away;
Adagrad's are as long for any gradient: a number of which the parts nearly cancel turns over by rounding (2e-3 each)."""
ALL_ROWS, FEWER = CUT, ("data.max_table_rows=4000000",)


def _cell(rule: str, *rivals: str, rows: tuple[str, ...] = ALL_ROWS, briefly: bool = True) -> Cell:
    size = (
        "tables cut to 8 M rows (31.3 M rows)"
        if rows == ALL_ROWS
        else "tables cut to 4 M rows: torch's Adagrad keeps as much again"
    )
    return Cell(
        f"{rule}{'' if briefly else '-waiting'}", "step", f"{KAGGLE}, {size}",
        (TRAIN, WRAPPED, IN_LINE, COLLECTION, *rivals), steps=6, briefly=briefly,
        settings=(f"optimizer.embedding={rule}", "knobs.policy=hotline", *rows),
    )  # fmt: skip


MULTI_HOT = Cell(
    "multi-hot", "step", f"{MLPERF}, row-wise Adagrad, policy hotline with room for 5 % of the rows",
    (TRAIN, WRAPPED, IN_LINE, COLLECTION, TORCHREC), "mlperf",
    ("optimizer.embedding=rowwise_adagrad", "knobs.policy=hotline", *CUT_SHORT), 2, 24,
)  # fmt: skip

QUICK = (
    _cell("rowwise_adagrad", TORCHREC),
    _cell("sgd", PLAIN),
    _cell("adagrad", PLAIN, rows=FEWER),
    MULTI_HOT,
)
ALL = (*QUICK, _cell("rowwise_adagrad", TORCHREC, briefly=False), _cell("sgd", PLAIN, briefly=False))


def rehearsed(cell: Cell) -> Cell:
    kept = tuple(setting for setting in cell.settings if setting not in CUT + FEWER + CUT_SHORT)
    more = ("run.threads=1", "knobs.reclassify_every=6")
    shape = "tiny_bags" if SHAPES[cell.shape].bags else "tiny"
    return replace(cell, shape=shape, settings=(*kept, *more), steps=2, batches=6)


def run_cell(cell: Cell, rounds: int, rehearse: bool, note: Note) -> dict[str, Any]:
    config = configure(SHAPES[cell.shape], 64 if rehearse else 2048, ("run.device=cpu", *cell.settings), None)
    source = preload(open_shape(SHAPES[cell.shape], config), config, cell.batches)
    budget = budget_bytes(config, source, HOT_RATIO)
    train = OurRun(config, source, budget)
    weights = partial(first_rows, train.runtime.store)
    bags = bag_items(source)
    made: dict[str, Any] = {TRAIN: train}
    absent: dict[str, str] = {}
    for name in cell.contestants:
        if name == IN_LINE:
            made[name] = wrapped_loop(config, source, weights, bags, budget)
        elif name == COLLECTION:
            made[name] = collection_loop(config, source, weights, jagged_items(source), budget)
        elif name == PLAIN:
            made[name] = plain_loop(config, source, weights, bags)
        elif name == TORCHREC and (reason := why_absent(name)):
            absent[name] = reason
        elif name == TORCHREC:
            made[name] = torchrec_loop(config, source, weights, jagged_items(source))
        note(f"{name} is set up" if name in made else f"{name} comes later")
    space = RowSpace.of(source.tables, source.features)
    touched = touched_rows(source.batches[: cell.steps], space)
    bounds = BOUNDS.get(config.optimizer.embedding, ROWS_BOUND)
    checks = first_turns(
        made, list(made), touched, rows_of(train, touched), cell.steps, lambda _: (1e-5, bounds, math.inf), note
    )
    note(f"{len(checks)} results compared")
    about = "the same model and runtime, its lookups told by runtime.prefetch"
    made[WRAPPED] = Announced(made[IN_LINE], foretell_bags, about)
    for contestant in made.values():
        for _ in range(-(-len(source) // cell.steps)):  # until rows are hot
            contestant.turn(cell.steps)
    note("rows are hot")
    return {"batches": len(source), **finish({name: made[name] for name in cell.contestants if name in made},
                                             absent, checks, rounds, cell.steps)}  # fmt: skip
