"""The cells: an update rule or a shape of bags each, with all that takes turns at it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from adaptive_rec.placement import RowSpace
from benchmarks.common.bench import Cell
from benchmarks.common.contestants import budget_bytes
from benchmarks.common.shapes import SHAPES, configure, open_shape, preload
from benchmarks.common.turns import first_turns, rows_of, touched_rows
from benchmarks.cpu.cells import HOT_RATIO, Note, finish
from benchmarks.cpu.contestants import OurRun, first_rows
from benchmarks.cpu.rivals import why_absent
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
from benchmarks.drop_in.plan import COLLECTION, IN_LINE, PLAIN, TORCHREC, TRAIN, WRAPPED

ROWS_BOUND, BOUNDS = 1e-5, {"sgd": 1e-2, "adagrad": 5e-3}
"""Of rows after the first turn, as a share of their movement. SGD's first steps are so short that float32 rounds them away;
Adagrad's are as long for any gradient: a number of which the parts nearly cancel turns over by rounding (2e-3 each)."""


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
