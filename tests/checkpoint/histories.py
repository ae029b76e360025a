"""A history of generations, of all rows and of changes, in a file system of tests, and checks of what is found of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import generations, names_in, read_json_file
from adaptive_rec.checkpoint.history import chain, newest_valid, prune, verify_all
from adaptive_rec.checkpoint.rows import SavedRows, shard_name
from adaptive_rec.checkpoint.safetensors_file import ArraysFile
from adaptive_rec.errors import CheckpointError
from tests.checkpoint.sim_files import SimFiles, Tree

CHECKPOINTS = Path("/checkpoints")

CHAINS: dict[int, tuple[int, ...]] = {
    7: (7,), 40: (7, 40), 123: (7, 40, 123), 180: (180,), 222: (180, 222), 260: (180, 222, 260),
    300: (300,), 333: (300, 333),
}  # fmt: skip
"""The steps that each generation of the history is put together from: of all rows at the first, of changes at later ones."""

STEPS = tuple(CHAINS)
TWO_CHAINS = STEPS[:6]
LAST = CHAINS[260] + CHAINS[333]
"""What is left where two are kept: both build on the same base, so the newest of another base stays, with its own."""

TABLES = (
    {"name": "users", "rows": 700, "dim": 12, "first_row": 50},
    {"name": "items", "rows": 50, "dim": 3, "first_row": 0},
)

Rows = list[tuple[NDArray[Any], NDArray[Any]]]
"""Rows and optimizer state of each table."""


def name_of(step: int) -> str:
    return f"step-{step:09d}"


@cache
def values(step: int) -> dict[str, Any]:
    """What a generation of these tests holds beside rows, other numbers at each step."""
    rng = np.random.default_rng(step)
    arrays = {"sketch/cells": rng.integers(0, 1 << 32, (4, 9), np.uint32), "model/bias": rng.random(5)}
    return {"arrays": arrays, "loss": rng.random()}


@cache
def new_rows(step: int) -> Rows:
    """What rows become at a step, if they change."""
    rng = np.random.default_rng([1, step])
    return [
        (rng.random((table["rows"], table["dim"]), np.float32), rng.random((table["rows"], 1), np.float32))
        for table in TABLES
    ]


@cache
def changed(step: int) -> list[NDArray[np.int64]]:
    """Which rows of each table change at a step: of items none at some of them."""
    rng = np.random.default_rng([2, step])
    return [
        np.sort(rng.choice(table["rows"], table["rows"] // 8 if step % 2 == 0 or not number else 0, replace=False))
        for number, table in enumerate(TABLES)
    ]


@cache
def rows_after(steps: tuple[int, ...]) -> Rows:
    """All rows, put together from those of the first step and changes of the others."""
    rows = [(weights.copy(), state.copy()) for weights, state in new_rows(steps[0])]
    for step in steps[1:]:
        for target, new, places in zip(rows, new_rows(step), changed(step), strict=True):
            for array, values in zip(target, new, strict=True):
                array[places] = values[places]
    return rows


def write(files: Files, step: int, folder: Path = CHECKPOINTS, on: tuple[int, ...] | None = None) -> Path:
    """A generation as the history has it, or where it has none, of all rows or of changes `on` that chain."""
    base = CHAINS.get(step, (step,))[:-1] if on is None else on
    since = chain(files, folder / name_of(base[-1]))[-1].since if base else None
    draft = Draft(files, folder, step)
    number = 0
    for table, (weights, state), places in zip(TABLES, new_rows(step), changed(step), strict=True):
        places = places if base else np.arange(table["rows"])
        if len(places):
            row = (places + table["first_row"]).astype(np.uint32)
            draft.arrays(shard_name(number), {"row": row, "weight": weights[places], "optimizer_state": state[places]})
            number += 1
    draft.arrays("state.safetensors", values(step)["arrays"])
    draft.json("state.json", {"run": {"tables": TABLES}, "loss": values(step)["loss"], "steps": [*base, step]})
    return draft.commit({"config_hash": f"of step {step}"}, since)


@dataclass
class History:
    """When, in entries of the log, each generation was started and committed."""

    moments: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, started, committed)"""

    def allowed(self, entries: int) -> set[int | None]:
        """The steps that may be found after so many entries: the newest committed, or the one that was being written."""
        committed: list[int | None] = [step for step, _, end in self.moments if end <= entries]
        return {[None, *committed][-1], *(step for step, started, end in self.moments if started <= entries < end)}


def write_history(files: Files, log: list[Any]) -> History:
    """All generations, after each of which two are kept, with those that they build on."""
    history = History()
    for step in STEPS:
        started = len(log)
        write(files, step)
        history.moments.append((step, started, len(log)))
        prune(files, CHECKPOINTS, keep=2)
    return history


def found_step(files: Files, folder: Path = CHECKPOINTS) -> int | None:
    """The step of the newest valid generation, of which every value and every row is as it was written."""
    found = newest_valid(files, folder)
    if found.generation is None:
        return None
    return checked_step(files, found.generation)


def checked_step(files: Files, generation: Path) -> int:
    """The step of a generation, of which every value and every row is as it was written."""
    named = re.fullmatch(r"step-(\d+)(\.\d+)?", generation.name)
    assert named is not None
    step = int(named[1])
    saved = read_json_file(files, generation / "state.json")
    steps = tuple(saved["steps"])
    assert (saved["loss"], steps) == (values(step)["loss"], CHAINS.get(step, steps)), (
        f"state.json of {step} has changed"
    )
    assert tuple(link.manifest.step for link in chain(files, generation)) == steps, f"{step} builds on others"
    file = ArraysFile(files, generation / "state.safetensors")
    assert set(file.arrays) == set(values(step)["arrays"])
    for name, array in values(step)["arrays"].items():
        assert np.array_equal(file.rows(name), array), f"{name} of step {step} has changed"
    saved = SavedRows(files, generation)
    for table, rows in zip(saved.tables, rows_after(steps), strict=True):
        for first, end in saved.chunks(table):
            for got, expected in zip(saved.read(table, first, end), rows, strict=True):
                assert np.array_equal(got, expected[first:end]), f"rows of {table.name} of step {step} have changed"
    return step


def wrong(tree: Tree, allowed: set[int | None]) -> str:
    """What is wrong with what is found on a disk, or nothing. Every generation that readers see must be whole."""
    files = SimFiles(tree)
    try:
        step = found_step(files)
        for name in generations(names_in(files, CHECKPOINTS)):
            verify_all(files, CHECKPOINTS / name)
    except (AssertionError, CheckpointError) as error:
        return str(error)
    return "" if step in allowed else f"found step {step}, where only {allowed} may be"
