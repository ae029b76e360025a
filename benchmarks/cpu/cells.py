"""How a cell of each kind is run, in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace
from benchmarks.common.bench import Absent, Cell
from benchmarks.common.command import data_folder
from benchmarks.common.contestants import budget_bytes
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.common.turns import first_turns, rows_of, take_turns, touched_rows
from benchmarks.cpu import small_cells
from benchmarks.cpu.contestants import Floor, OurRun, RivalRun, first_rows
from benchmarks.cpu.parts import OurRows, RivalRows
from benchmarks.cpu.plan import TORCH_LAYERS
from benchmarks.cpu.rivals import RIVALS, why_absent
from benchmarks.cpu.torchrec_dlrm import NAMES as THEIR_DLRM
from benchmarks.cpu.torchrec_dlrm import TorchRecDlrm

Note = Callable[[str], None]

SAMPLE = "criteo_kaggle_sample_137k.tsv.zst"
HOT_RATIO = 0.05
"""Share of all rows that fits the hot tier."""

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
    "no skipping": ("knobs.policy=random_skip", "knobs.action=drop", "knobs.target_skip_ratio=0"),
    "dropping": ("knobs.policy=random_skip", "knobs.action=drop", "knobs.target_skip_ratio=0.95"),
    "without prefetching": ("knobs.prefetch_depth=0",),
}
"""Runs of ours by their names, with what they are set to beside the cell's settings."""

EXACT = ("hybrid", "hybrid compiled", "hotline", "hotline split", "without prefetching")


def sample_path() -> Path:
    """Return the Criteo sample, or raise Absent."""
    folder = data_folder()
    if not (folder / SAMPLE).is_file():
        raise Absent(f"{SAMPLE} is not in {folder} (ADAPTIVE_REC_TEST_DATA names the folder)")
    return folder / SAMPLE


def run_cell(cell: Cell, rounds: int, rehearse: bool, note: Note) -> dict[str, Any]:
    if cell.kind == "sketch":
        return small_cells.sketch(rounds, rehearse)
    if cell.kind == "reading":
        return small_cells.reading(sample_path(), rounds, rehearse)
    size = 64 if rehearse else 2048
    data = str(sample_path()) if cell.real else None

    def config_of(*more: str) -> Config:
        every = ("run.device=cpu", "knobs.policy=hybrid", *cell.settings, *more)
        return configure(SHAPES[cell.shape], size, every, data)

    config = config_of()
    source = preload(open_shape(SHAPES[cell.shape], config), config, cell.batches)
    if cell.kind == "freeze":
        return small_cells.freeze(config, source, rounds, cell.steps)
    of = embedding_part if cell.kind == "embedding" else whole_step
    return {"batches": len(source), **of(cell, config_of, source, rounds, note)}


def whole_step(
    cell: Cell, config_of: Callable[..., Config], source: Preloaded, rounds: int, note: Note
) -> dict[str, Any]:
    """Steps of runs of ours, of rivals and of the dense part alone."""
    config, made, comparable = config_of(), {}, []
    absent: dict[str, str] = {}
    for name in cell.contestants:
        if name in OURS:
            mine = config_of(*OURS[name])
            budget = budget_bytes(mine, source, HOT_RATIO) if mine.knobs.policy != "hybrid" else None
            made[name] = OurRun(mine, source, budget)
        elif (rival := name.removesuffix(TORCH_LAYERS)) in RIVALS:
            if absent_for := why_absent(rival):
                absent[name] = absent_for
                continue
            tables = RIVALS[rival][1](
                config, RowSpace.of(source.tables, source.features), partial(first_rows, made["hybrid"].runtime.store)
            )
            made[name] = RivalRun(tables, config if rival == name else config_of("run.linear=torch"), source)
        elif name in THEIR_DLRM:
            if absent_for := why_absent("TorchRec"):
                absent[name] = absent_for
                continue
            made[name] = TorchRecDlrm(config, source, made["hybrid"].runtime.store, THEIR_DLRM[name])
        else:
            made[name] = Floor(config, source)
        if name in EXACT or getattr(made[name], "row_wise", False):
            comparable.append(name)
        note(f"{name} is set up")
    precision = config.run.precision
    checks = agree(made, comparable, source, cell.steps, precision, note)
    note(f"{len(checks)} results compared")
    for name, contestant in made.items():
        if (
            isinstance(contestant, OurRun) and contestant.window_steps > 1
        ):  # until rows are hot, and back to the same batch
            contestant.warm(len(source), cell.steps)
            note(f"{name}: {contestant.facts()}")
    if "floor split" in made and "hotline split" in made:
        made["floor split"].popular_ratio = made["hotline split"].popular_ratio
    return finish(made, absent, checks, rounds, cell.steps)


def embedding_part(
    cell: Cell, config_of: Callable[..., Config], source: Preloaded, rounds: int, note: Note
) -> dict[str, Any]:
    """Rows read and updated, on given gradients, without a dense part."""
    config, space = config_of(), RowSpace.of(source.tables, source.features)
    dice = torch.Generator().manual_seed(1)
    gradient = torch.randn((config.run.batch_size, len(space.features), space.pools[0].dim), generator=dice) / 2048
    ours = OurRows(config, source, gradient)
    made: dict[str, Any] = {"ours": ours}
    absent = {name: why_absent(name) for name in cell.contestants if name in RIVALS and why_absent(name)}
    for name in cell.contestants:
        if name in RIVALS and name not in absent:
            made[name] = RivalRows(
                RIVALS[name][1](config, space, partial(first_rows, ours.runtime.store)), source, gradient
            )
        note(f"{name} is set up" if name in made else f"{name} is absent")
    checks = agree(made, list(made), source, cell.steps, "float32", note)
    return finish(made, absent, checks, rounds, cell.steps)


def agree(
    made: dict[str, Any],
    comparable: list[str],
    source: Preloaded,
    steps: int,
    precision: str,
    note: Note,
) -> list[dict[str, Any]]:
    touched = touched_rows(source.batches[:steps], RowSpace.of(source.tables, source.features))
    first = rows_of(made[comparable[0]], touched) if comparable else []

    def bounds_of(name: str) -> tuple[float, float, float]:
        other = name in THEIR_DLRM or name.endswith((TORCH_LAYERS, " compiled"))  # compiled models multiply by torch
        return OTHER_DENSE_BOUNDS if other else BOUNDS[precision]

    return first_turns(made, comparable, touched, first, steps, bounds_of, note)


def finish(
    made: dict[str, Any], absent: dict[str, str], checks: list[dict[str, Any]], rounds: int, steps: int
) -> dict[str, Any]:
    for contestant in made.values():
        contestant.turn(steps)
    runs = take_turns(made, rounds, steps)
    for contestant in made.values():
        contestant.close()
    return {"runs": runs, "absent": absent, "checks": checks, "rounds": rounds, "steps": steps}
