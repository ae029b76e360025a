"""How a cell of each kind is run, in a process of its own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import RowSpace
from benchmarks.common.cell import Absent, Cell
from benchmarks.common.command import data_folder
from benchmarks.common.contestants import budget_bytes
from benchmarks.common.rivals import Tables
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.common.turns import CLOCK, agree, take_turns
from benchmarks.cpu.contestants import Floor, OurRun, RivalRun, first_rows
from benchmarks.cpu.parts import OurRows, RivalRows
from benchmarks.cpu.plan import TORCH_LAYERS
from benchmarks.cpu.rivals import RIVALS, why_absent
from benchmarks.cpu.torchrec_dlrm import NAMES as THEIR_DLRM
from benchmarks.cpu.torchrec_dlrm import TorchRecDlrm

Note = Callable[[str], None]

OTHER_DENSE_BOUNDS = (1e-3, 5e-2, 2.0)
"""Where a rival's dense part sums in another order, for the same reason in float32 too."""

BOUNDS = {"float32": (1e-5, 1e-5, math.inf), "bf16": (1e-4, 2e-2, 2.0)}
"""Of the mean loss, relative, and of the rows, as a share of their movement by a norm. Adagrad's first step is the gradient
divided by its own size, so where autocast rounds a sum otherwise a row with a small gradient moves quite otherwise; all rows
together do not."""

OURS: dict[str, tuple[str, ...]] = {
    "hybrid": (),
    "hybrid compiled": ("run.compile=true",),
    "hotline": ("knobs.policy=hotline",),
    "hotline split": ("knobs.policy=hotline", "run.split=always"),
    "without prefetching": ("knobs.prefetch_depth=0",),
}
"""Runs of ours by their names, with what they are set to beside the cell's settings."""

EXACT = ("hybrid", "hybrid compiled", "hotline", "hotline split", "without prefetching")


def run_cell(cell: Cell, args: argparse.Namespace, note: Note) -> dict[str, Any]:
    CLOCK.by_processor = args.cpu_time
    data = data_folder() / cell.data if cell.data else None
    if data is not None and not data.is_file():
        raise Absent(f"{cell.data} is not in {data.parent} (ADAPTIVE_REC_TEST_DATA names the folder)")

    def config_of(*more: str) -> Config:
        every = ("run.device=cpu", "knobs.policy=hybrid", *cell.settings, *more)
        return configure(SHAPES[cell.shape], 64 if args.rehearse else 2048, every, str(data) if data else None)

    config = config_of()
    source = preload(open_shape(SHAPES[cell.shape], config), config, cell.batches)
    names = cell.contestants if cell.kind == "step" else ("ours", *(name for name in cell.contestants if name != "ours"))
    made: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name in names:
        rival = name.removesuffix(TORCH_LAYERS)
        needed = rival if rival in RIVALS else "TorchRec" if name in THEIR_DLRM else ""
        if needed and (reason := why_absent(needed)):
            absent[name] = reason
        else:
            made[name] = (whole_step if cell.kind == "step" else embedding_part)(name, cell, config_of, source, made)
            note(f"{name} is set up")
    comparable = [name for name in made if name in EXACT or getattr(made[name], "row_wise", False)]
    checks = agree(made, comparable, source, cell.steps, partial(bounds_of, precision=config.run.precision), note)
    for name, contestant in made.items():
        if isinstance(contestant, OurRun) and contestant.window_steps > 1:
            contestant.warm(len(source), cell.steps)  # until rows are hot, and back to the same batch
            note(f"{name}: {contestant.facts()}")
    if "floor split" in made and "hotline split" in made:
        made["floor split"].popular_ratio = made["hotline split"].popular_ratio
    return {"batches": len(source), **finish(made, absent, checks, args, cell.steps)}


def whole_step(name: str, cell: Cell, config_of: Callable[..., Config], source: Preloaded, made: dict[str, Any]) -> Any:
    """Return a contestant at whole steps: a run of ours, a rival or the dense part alone."""
    rival = name.removesuffix(TORCH_LAYERS)
    if name in OURS:
        mine = config_of(*OURS[name])
        return OurRun(mine, source, budget_bytes(mine, source, cell.rows_ratio) if mine.knobs.policy != "hybrid" else None)
    if rival in RIVALS:
        plain = config_of() if rival == name else config_of("run.linear=torch")
        return RivalRun(tables_of(rival, config_of(), source, made), plain, source)
    if name in THEIR_DLRM:
        return TorchRecDlrm(config_of(), source, store_of(made), THEIR_DLRM[name])
    return Floor(config_of(), source)


def embedding_part(name: str, cell: Cell, config_of: Callable[..., Config], source: Preloaded, made: dict[str, Any]) -> Any:
    """Return a contestant at reading and updating rows, on given gradients, without a dense part."""
    config, space = config_of(), RowSpace.of(source.tables, source.features)
    dice = torch.Generator().manual_seed(1)
    gradient = torch.randn((config.run.batch_size, len(space.features), space.pools[0].dim), generator=dice) / 2048
    if name == "ours":
        return OurRows(config, source, gradient)
    return RivalRows(tables_of(name, config, source, made), source, gradient)


def tables_of(rival: str, config: Config, source: Preloaded, made: dict[str, Any]) -> Tables:
    return RIVALS[rival][1](config, RowSpace.of(source.tables, source.features), partial(first_rows, store_of(made)))


def store_of(made: dict[str, Any]) -> EmbeddingStore:
    """Return the store whose first rows rivals begin with: that of a run of ours before them."""
    runs = [contestant for contestant in made.values() if isinstance(contestant, (OurRun, OurRows))]
    if not runs:
        raise Absent("a rival begins with the rows of a run of ours: --contestants must name one before it")
    return runs[0].runtime.store


def bounds_of(name: str, precision: str) -> tuple[float, float, float]:
    other = name in THEIR_DLRM or name.endswith((TORCH_LAYERS, " compiled"))  # compiled models multiply by torch
    return OTHER_DENSE_BOUNDS if other else BOUNDS[precision]


def finish(
    made: dict[str, Any], absent: dict[str, str], checks: list[dict[str, Any]], args: argparse.Namespace, steps: int
) -> dict[str, Any]:
    for contestant in made.values():
        contestant.turn(steps)
    runs = take_turns(made, args.rounds, steps, ends=args.ends)
    rounds = len(next(iter(runs.values()))["seconds"])
    for contestant in made.values():
        contestant.close()
    clock = "processor time of all threads" if CLOCK.by_processor else "the time that passes"
    return {"runs": runs, "absent": absent, "checks": checks, "rounds": rounds, "steps": steps, "clock": clock}
