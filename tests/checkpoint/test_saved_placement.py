"""The placement of a run that has ended, read from its newest checkpoint, is row for row that of the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adaptive_rec.checkpoint import saved_placement
from adaptive_rec.checkpoint.saved_placement import COUNTERS, HotSlots, newest_placement
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.sketch_numpy import find_cells, sketch_estimate, sketch_seeds
from adaptive_rec.run.training_run import TrainingRun


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that has ended, and its runtime."""
    out = tmp_path_factory.mktemp("trained") / "run"
    settings = ["run.steps=45", "knobs.policy=slipstream", "knobs.target_skip_ratio=0.5", "checkpoint.every_steps=20"]
    run = TrainingRun(load_config("tiny", environment={}, settings=settings), out)
    for _ in run.events():
        pass
    run.finish()
    return run


def read(run: Any, folder: Path) -> Any:
    space = run.runtime.store.peers.batch_space
    return newest_placement(folder, space.table_first_row.tolist()[: len(space.tables)], space.rows)


def test_it_is_that_of_the_run(trained: Any) -> None:
    store, runtime = trained.runtime.store, trained.runtime
    found = read(trained, trained.out / "checkpoints")
    assert (found.step, found.version) == (45, store.index.placement.moves)
    assert found.hot_rows == store.index.hot_rows_T.tolist()
    assert found.stale_rows == runtime.observer.stale.rows_T.tolist()
    assert sum(found.stale_rows) > 0
    everything = found.arrays.slots_plus_one[0 : store.peers.batch_space.rows]
    assert everything.tolist() == (store.index.placement.slot_of_row + 1).tolist()
    some = np.array([3, 0, store.peers.batch_space.rows - 1, 3])
    assert found.arrays.slots_plus_one[some].tolist() == everything[some].tolist()
    for pool in range(len(store.space.pools)):
        assert found.arrays.estimate[pool].tolist() == store.hot.tier.estimate[pool].tolist()
        assert found.arrays.movement[pool].tolist() == store.hot.tier.movement[pool].tolist()
    counter = runtime.observer.tracker.counter
    assert found.arrays.sketch_counters.tolist() == counter.counters.tolist()
    assert found.arrays.sketch_seeds.tolist() == counter.seeds.tolist()


def test_a_damaged_checkpoint_gives_way_to_an_older_one(trained: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(trained.out / "checkpoints", tmp_path / "checkpoints")
    names = sorted(path.name for path in folder.glob("step-*"))
    assert len(names) > 1
    file = folder / names[-1] / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert read(trained, folder).name == names[-2]
    for name in names[:-1]:
        (folder / name / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError, match=rf"{names[-1]}/state.safetensors is damaged"):
        read(trained, folder)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        read(trained, tmp_path)
    with pytest.raises(CheckpointError, match="rows in the slots of pool 0 must be below 5"):
        newest_placement(trained.out / "checkpoints", [0], 5)


def test_no_row_is_hot_where_there_are_no_slots() -> None:
    none = HotSlots([np.empty(0, np.int64)])
    assert none[np.array([1, 2])].tolist() == [0, 0]
    assert none[5:8].tolist() == [0, 0, 0]


def test_it_loads_neither_torch_nor_numba() -> None:
    code = "import sys, adaptive_rec.checkpoint.saved_placement; print([m for m in ('torch', 'numba') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_sketch_of_lines_of_an_older_version_is_shown() -> None:
    """Its shape says what it is; each line has its own hash."""
    rows, seeds = np.array([3, 77, 5000]), sketch_seeds(9, 4)
    lines = np.zeros((4, 1 << 10), np.uint32)
    lines.reshape(-1)[find_cells(rows, seeds, lines.shape)] = 16 * np.array([2, 5, 7])
    file = SimpleNamespace(
        arrays={COUNTERS: SimpleNamespace(dtype=np.dtype(np.uint32))}, rows=lambda name: {COUNTERS: lines}[name]
    )
    arrays: dict[str, Any] = {}
    words = saved_placement._sketch(arrays, file, 9)
    lookups = np.empty(len(rows))
    shape = words["sketch_blocks"], words["sketch_block_cells"]
    sketch_estimate(arrays["sketch_cells"].reshape(shape), rows, arrays["sketch_seeds"], words["sketch_unit"], lookups)
    assert lookups.tolist() == [2, 5, 7]
    lines = np.zeros((3, 12), np.uint32)
    assert saved_placement._sketch(arrays, file, 9) == {}
