"""The cells: an update rule or a shape of bags each, with all that takes turns at it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.common.cell import Cell
from benchmarks.common.contestants import budget_bytes
from benchmarks.common.shapes import SHAPES, configure, open_shape, preload
from benchmarks.common.turns import agree
from benchmarks.cpu.cells import Note, finish
from benchmarks.cpu.contestants import OurRun, first_rows
from benchmarks.cpu.rivals import why_absent
from benchmarks.drop_in.contestants import (
    bag_items,
    collection_loop,
    foretell_bags,
    jagged_items,
    plain_loop,
    told_ahead,
    torchrec_loop,
    wrapped_loop,
)
from benchmarks.drop_in.plan import COLLECTION, IN_LINE, PLAIN, TORCHREC, TRAIN, WRAPPED

ROWS_BOUND, BOUNDS = 1e-5, {"sgd": 1e-2, "adagrad": 5e-3}
"""Of rows after the first turn, as a share of their movement. SGD's first steps are so short that float32 rounds them away;
Adagrad's are as long for any gradient: a number of which the parts nearly cancel turns over by rounding (2e-3 each)."""


def run_cell(cell: Cell, args: argparse.Namespace, note: Note) -> dict[str, Any]:
    size = 64 if args.rehearse else 2048
    config = configure(SHAPES[cell.shape], size, ("run.device=cpu", *cell.settings), None)
    source = preload(open_shape(SHAPES[cell.shape], config), config, cell.batches)
    budget = budget_bytes(config, source, cell.rows_ratio)
    train = OurRun(config, source, budget)
    weights, bags = partial(first_rows, train.runtime.store), bag_items(source)
    makers: dict[str, Callable[[], Any]] = {
        IN_LINE: lambda: wrapped_loop(config, source, weights, bags, budget),
        COLLECTION: lambda: collection_loop(config, source, weights, jagged_items(source), budget),
        PLAIN: lambda: plain_loop(config, source, weights, bags),
        TORCHREC: lambda: torchrec_loop(config, source, weights, jagged_items(source)),
    }
    absent = {name: why_absent(name) for name in cell.contestants if name == TORCHREC and why_absent(name)}
    wanted = {*cell.contestants, *((IN_LINE,) if WRAPPED in cell.contestants else ())} - absent.keys()
    made: dict[str, Any] = {TRAIN: train, **{name: make() for name, make in makers.items() if name in wanted}}
    note(f"{', '.join(made)} are set up")
    bounds = (1e-5, BOUNDS.get(config.optimizer.embedding, ROWS_BOUND), math.inf)
    checks = agree(made, list(made), source, cell.steps, lambda _: bounds, note)
    if WRAPPED in cell.contestants:
        about = "the same model and runtime, its lookups told by runtime.prefetch"
        made[WRAPPED] = told_ahead(made[IN_LINE], foretell_bags, about)
    for contestant in made.values():
        for _ in range(-(-len(source) // cell.steps)):  # until rows are hot
            contestant.turn(cell.steps)
    note("rows are hot")
    made = {name: made[name] for name in cell.contestants if name in made}
    return {"batches": len(source), **finish(made, absent, checks, args, cell.steps)}
