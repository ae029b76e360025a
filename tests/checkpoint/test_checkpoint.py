"""A checkpoint holds everything that training needs to resume, and nothing half-written is taken for one."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.files import Disk, Output
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.matrix import always, each, grid

TINY = [
    "knobs.policy=hybrid", "run.split=always", "run.device=cpu", "run.threads=1", "run.precision=float64", "run.batch_size=16",
    "run.steps=24", "data.table_rows=[40, 30, 7]", "data.dense_features=2", "data.synthetic.samples=800",
    "data.synthetic.test_samples=16", "model.embedding_dim=4", "model.table_dims=[4, 2, 4]", "model.bottom_mlp=[8]",
    "model.top_mlp=[8]", "optimizer.embedding=sgd", "optimizer.dense=SGD", "optimizer.warmup_steps=4", "optimizer.decay_start=10",
    "optimizer.decay_steps=20", "knobs.reclassify_every=5", "knobs.hysteresis=0.0", "knobs.hot_budget_bytes=1500",
]  # fmt: skip


def build(*changes: str) -> Runtime:
    return assemble(load_config(None, {}, [*TINY, *changes]))


def run_to_end(runtime: Runtime) -> Runtime:
    for _ in runtime.run():
        pass
    return runtime


def state_of(runtime: Runtime) -> list[np.ndarray]:
    tables = [part for table in range(len(runtime.store.space.tables)) for part in runtime.store.export_table(table)]
    return tables + [parameter.detach().numpy() for parameter in runtime.dense.model.parameters()]


def assert_same(one: Runtime, other: Runtime, **tolerance: float) -> None:
    for mine, theirs in zip(state_of(one), state_of(other), strict=True):
        np.testing.assert_allclose(mine, theirs, **{"rtol": 0, "atol": 0, **tolerance})


DENSE = {
    "SGD": [],
    "SGD with momentum": ["optimizer.dense_options={momentum = 0.9, nesterov = true}"],
    "Adagrad": [],
    "Adam": ["optimizer.dense_options={amsgrad = true}"],
}


@grid(always, each, dense=list(DENSE), embedding=list(NAMED_RULES))
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path, embedding: str, dense: str) -> None:
    """Stopped in mid-stream under hotline, gone on with under hotline with another budget: equal to plain steps throughout."""
    optimizer = [f"optimizer.embedding={embedding}", f"optimizer.dense={dense.split()[0]}", *DENSE[dense]]
    straight = run_to_end(build(*optimizer))

    first = run_to_end(build(*optimizer, "knobs.policy=hotline", "run.steps=11"))
    assert first.store.device.hot_rows > 0
    folder = checkpoint.save(first.parts, tmp_path)
    second = build(*optimizer, "knobs.policy=hotline", "knobs.hot_budget_bytes=700")
    checkpoint.load(second.parts, folder)
    assert (second.step_number, second.state.position) == (11, first.state.position)
    assert_same(second, first)
    run_to_end(second)

    assert second.step_number == straight.step_number == 24
    assert_same(second, straight, atol=1e-12)


@pytest.mark.parametrize("policy", ["hybrid", "hotline", "device_only"])
def test_a_resumed_run_places_rows_as_a_fresh_one_does(tmp_path: Path, policy: str) -> None:
    first = run_to_end(build("run.steps=6"))
    folder = checkpoint.save(first.parts, tmp_path)
    second = build(f"knobs.policy={policy}")
    checkpoint.load(second.parts, folder)
    before = second.reports.totals()
    run_to_end(second)
    gain = {name: value - before[name] for name, value in second.reports.totals().items()}
    assert (gain["lookups_hot"] > 0) == (policy != "hybrid")
    if policy == "device_only":
        assert gain["lookups_hot"] == gain["lookups"] > 0


def test_saving_changes_nothing(tmp_path: Path) -> None:
    runtime = run_to_end(build("knobs.policy=hotline", "run.steps=10", "optimizer.embedding=lazy_adam"))
    before, placement = [part.copy() for part in state_of(runtime)], runtime.store.placement
    checkpoint.save(runtime.parts, tmp_path)
    assert runtime.store.placement is placement
    for mine, old in zip(state_of(runtime), before, strict=True):
        assert np.array_equal(mine, old)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.save(
        run_to_end(build("run.steps=3", "optimizer.dense=Adam", "optimizer.embedding=adagrad")).parts, tmp_path
    )


def fresh() -> Runtime:
    return build("optimizer.dense=Adam", "optimizer.embedding=adagrad")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("optimizer.embedding=sgd", "embedding_optimizer"),
        ("optimizer.dense=SGD", "dense_optimizer"),
        ("run.precision=float32", "precision"),
        ("data.table_rows=[40, 30, 8]", "data.table_rows"),
        ("model.table_dims=[4, 4, 4]", r"tables\.\w+\.dim"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_by_name(saved: Path, change: str, named: str) -> None:
    with pytest.raises(CheckpointError, match=f"{named} of checkpoint .*{saved.name} must be"):
        checkpoint.load(build("optimizer.dense=Adam", "optimizer.embedding=adagrad", change).parts, saved)


def test_only_the_settings_that_differ_are_named(saved: Path) -> None:
    runtime = fresh()
    data = runtime.config.data
    was, stream = data.synthetic.samples, data.synthetic.model_copy(update={"samples": 999})
    data = data.model_copy(update={"source": "other.tsv", "synthetic": stream, "epochs": 3})
    runtime.parts.state.config = runtime.config.model_copy(update={"data": data})
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(runtime.parts, saved)
    assert str(error.value) == (
        f"data.source of checkpoint {saved} must be 'synthetic', got 'other.tsv'; data.synthetic.samples must be {was}, got 999"
    )


def test_another_shape_of_the_dense_part_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"top\.0\.weight"):
        checkpoint.load(build("optimizer.dense=Adam", "optimizer.embedding=adagrad", "model.top_mlp=[9]").parts, saved)


def test_a_checkpoint_of_the_first_format_is_refused_by_its_number(tmp_path: Path) -> None:
    old = tmp_path / "step-000000003"
    old.mkdir()
    (old / "checkpoint.json").write_text('{"format": 1, "step": 3}')
    with pytest.raises(CheckpointError, match="must be a checkpoint of format 3, got one of format 1"):
        checkpoint.load(fresh().parts, old)
    with pytest.raises(CheckpointError, match=r"must be whole, none is: .*format 1"):
        checkpoint.newest(tmp_path)


SHARDS = ["rows-00000.safetensors", "rows-00001.safetensors"]
"""The first holds tables 0 and 2, of dim 4, the other table 1."""

FILES = ["MANIFEST.json", "state.json", "state.safetensors", "dense.safetensors", *SHARDS]


def test_the_damage_cases_cover_each_file_of_a_checkpoint(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "overwritten"])
def test_damaged_files_are_reported_as_an_unreadable_checkpoint(saved: Path, name: str, damage: str) -> None:
    path = saved / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "truncated": content[: len(content) // 2], "overwritten": b"\xff" * len(content)}[damage]
        )
    with pytest.raises(CheckpointError, match=saved.name):
        checkpoint.load(fresh().parts, saved)


@pytest.mark.parametrize(
    ("rows", "dtype", "message"),
    [
        ((48, 4), torch.float64, r".*rows-00000.safetensors must hold row \(N,\), weight \(N, D\)"),
        ((46, 4), torch.float64, r".*rows-00000.safetensors must hold row \(N,\), weight \(N, D\)"),
        ((47, 1), torch.float64, r"weight of .*rows-00000.safetensors must be of dim 4 for table '\w+', got 1"),
        ((47, 4), torch.float32, r"weight of table \w+ must be in rows of \[4\] float64, got \[4\] F32"),
    ],
)
def test_rows_of_another_shape_or_type_are_errors(
    saved: Path, rows: tuple[int, int], dtype: torch.dtype, message: str
) -> None:
    """Though the description says otherwise: none is left out, repeated or taken for what it is not."""
    path = saved / SHARDS[0]
    save_file(load_file(path) | {"weight": torch.zeros(rows, dtype=dtype)}, path)
    with pytest.raises(CheckpointError, match=rf"{saved.name} cannot be used: {message}"):
        checkpoint.load(fresh().parts, saved, verified=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": None}, "state must hold step, which is missing"),
        ({"step": "3"}, "state/step must be a whole number, got 3"),
        ({"step": True}, "state/step must be a whole number, got True"),
        ({"position": None}, "position"),
        ({"position": {"epoch": 0, "page": 1}}, "state/position must hold seed"),
        ({"page": 1}, "state must hold nothing unknown, got page"),
        ({"knobs": {"alpha": 7}}, "knobs of a checkpoint must be valid: knobs.alpha"),
        ({"tally": []}, "array tally/.* of a state must be in an object of state.json, tally is none"),
    ],
)
def test_a_state_that_makes_no_sense_cannot_be_used(saved: Path, change: dict[str, Any], message: str) -> None:
    found = json.loads((saved / "state.json").read_text())
    state = found["state"] | change
    found["state"] = {key: value for key, value in state.items() if value is not None or key not in change}
    (saved / "state.json").write_text(json.dumps(found))
    runtime = build("run.steps=3", "optimizer.dense=Adam", "optimizer.embedding=adagrad")
    with pytest.raises(CheckpointError, match=f"{saved.name} cannot be used: .*{message}"):
        checkpoint.load(runtime.parts, saved, verified=True)


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"state": {}, "run": 1}'])
def test_an_invalid_state_cannot_be_read(saved: Path, text: str) -> None:
    (saved / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"{saved.name}/state.json must have parts state and run"):
        checkpoint.load(fresh().parts, saved, verified=True)


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "absent") is None
    runtime = build("checkpoint.keep=3")
    folders = []
    for number in (9, 12, 100):
        runtime.state.set_step(number)
        folders.append(checkpoint.save(runtime.parts, tmp_path))
    assert checkpoint.newest(tmp_path) == folders[-1], "step 100 is newer than step 12"
    (folders[-1] / "MANIFEST.json").unlink()
    found = checkpoint.find(tmp_path)
    assert found.generation == folders[1], "the manifest is written last: without it nothing is whole"
    assert [name for name, _ in found.skipped] == [folders[-1].name]
    for folder in folders[:2]:
        (folder / "state.json").write_bytes(b"{")
    with pytest.raises(
        CheckpointError, match=r"must be whole, none is: .*step-000000100.*step-000000012.*step-000000009"
    ):
        checkpoint.newest(tmp_path)


def test_older_checkpoints_are_removed_except_kept_ones_and_their_bases(tmp_path: Path) -> None:
    runtime = build("checkpoint.keep=2")
    left = []
    for number in (1, 2, 3, 4, 5, 6):
        runtime.state.set_step(number)
        if number in (4, 6):
            runtime.parts.base.build_on(None)  # so that all rows are written again
        checkpoint.save(runtime.parts, tmp_path)
        left.append([int(path.name.removeprefix("step-")) for path in sorted(tmp_path.iterdir())])
    assert left == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [4, 5, 6]], "5 builds on 4, 6 on none"


def test_a_damaged_or_removed_base_is_reported_for_all_that_build_on_it(tmp_path: Path) -> None:
    runtime = build()
    for number in (1, 2, 3):
        runtime.state.set_step(number)
        checkpoint.save(runtime.parts, tmp_path)
    base = tmp_path / "step-000000001"
    (base / SHARDS[1]).write_bytes(b"")
    for number in (1, 2, 3):
        with pytest.raises(CheckpointError, match=r"step-000000001/rows-00001.safetensors must have \d+ bytes, got 0"):
            checkpoint.load(build().parts, tmp_path / f"step-{number:09d}")
    with pytest.raises(CheckpointError, match=r"must be whole, none is: .*step-000000003 builds on step-000000001: "):
        checkpoint.newest(tmp_path)
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match="step-000000002 builds on step-000000001, which cannot be used"):
        checkpoint.load(build().parts, tmp_path / "step-000000002")
    runtime.state.set_step(4)
    assert checkpoint.newest(checkpoint.save(runtime.parts, tmp_path).parent) == tmp_path / "step-000000004", (
        "of all rows"
    )


class FullDisk(Disk):
    def create(self, path: Path) -> Output:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_half_new_one(tmp_path: Path) -> None:
    runtime = run_to_end(build("run.steps=3"))
    old = checkpoint.save(runtime.parts, tmp_path)
    runtime.state.set_step(4)
    with pytest.raises(CheckpointError, match=r"step-000000004.*No space left"):
        checkpoint.save(runtime.parts, tmp_path, FullDisk())
    assert checkpoint.newest(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    assert checkpoint.save(runtime.parts, tmp_path).name == "step-000000004"


def test_a_written_checkpoint_never_changes(tmp_path: Path) -> None:
    runtime = run_to_end(build("run.steps=3"))
    folder = checkpoint.save(runtime.parts, tmp_path)
    with torch.no_grad():
        next(runtime.dense.model.parameters()).fill_(0.5)
    assert checkpoint.save(runtime.parts, tmp_path) == folder
    other = build()
    checkpoint.load(other.parts, folder)
    assert not bool((next(other.dense.model.parameters()) == 0.5).any())
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_changed_knobs_make_a_new_checkpoint(tmp_path: Path) -> None:
    runtime = run_to_end(build("run.steps=3"))
    folder = checkpoint.save(runtime.parts, tmp_path)
    runtime.state.change_knobs(runtime.knobs.changed({"alpha": 0.5}))
    again = checkpoint.save(runtime.parts, tmp_path)
    assert again.name == f"{folder.name}.1"
    assert checkpoint.newest(tmp_path) == again
    assert checkpoint.saved_knobs(again).alpha == 0.5


def test_a_folder_that_cannot_be_made_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="file"):
        checkpoint.save(build().parts, tmp_path / "file")
