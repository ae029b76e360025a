"""A history of three generations in a file system of tests, and whether what is found of it is right."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import Draft, read_json_file
from adaptive_rec.checkpoint.history import newest_valid, prune
from adaptive_rec.checkpoint.safetensors_file import ArraysFile
from tests.checkpoint.sim_files import SimFiles, Tree

CHECKPOINTS = Path("/checkpoints")
STEPS = (7, 40, 123)


@cache
def values(step: int) -> dict[str, dict[str, Any]]:
    """What a generation of these tests holds: other numbers, and another table's size, at each step."""
    rng = np.random.default_rng(step)
    rows = 850 + step
    table = {"weight": rng.random((rows, 12), np.float32), "optimizer_state": rng.random((rows, 1), np.float32)}
    state = {"sketch/cells": rng.integers(0, 1 << 32, (4, 9), np.uint32), "model/bias": rng.random(5)}
    return {
        "table-0000.safetensors": table,
        "state.safetensors": state,
        "state.json": {"step": step, "loss": rng.random()},
    }


def write(files: Files, step: int, folder: Path = CHECKPOINTS) -> Path:
    draft = Draft(files, folder, step)
    for name, content in values(step).items():
        (draft.json if name.endswith("json") else draft.arrays)(name, content)
    return draft.commit({"config_hash": f"of step {step}"})


@dataclass
class History:
    """When, in entries of the log, each generation was begun and committed."""

    moments: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, begun, committed)"""

    def allowed(self, entries: int) -> set[int | None]:
        """The steps that may be found after so many entries: the newest committed, or the one that was being written."""
        committed: list[int | None] = [step for step, _, end in self.moments if end <= entries]
        return {[None, *committed][-1], *(step for step, begun, end in self.moments if begun <= entries < end)}


def write_history(files: Files, log: list[Any]) -> History:
    """Three generations, after each of which only two are kept."""
    history = History()
    for step in STEPS:
        begun = len(log)
        write(files, step)
        history.moments.append((step, begun, len(log)))
        prune(files, CHECKPOINTS, keep=2)
    return history


def found_step(files: Files, folder: Path = CHECKPOINTS) -> int | None:
    """The step of the newest valid generation, of which every value is as it was written."""
    found = newest_valid(files, folder)
    if found.generation is None:
        return None
    named = re.fullmatch(r"step-(\d+)(\.\d+)?", found.generation.name)
    assert named is not None
    step = int(named[1])
    for name, content in values(step).items():
        if name.endswith("json"):
            assert read_json_file(files, found.generation / name) == content
            continue
        file = ArraysFile(files, found.generation / name)
        assert set(file.arrays) == set(content)
        for array in content:
            assert np.array_equal(file.rows(array), content[array]), f"{name} of step {step} has changed"
    return step


def wrong(tree: Tree, allowed: set[int | None]) -> str:
    """What is wrong with what is found on a disk, or nothing."""
    try:
        step = found_step(SimFiles(tree))
    except AssertionError as error:
        return str(error)
    return "" if step in allowed else f"found step {step}, where only {allowed} may be"
