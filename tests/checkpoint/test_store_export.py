"""Export of rows by their ids, and of what changed since an earlier checkpoint, replayed into the store of the guide."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.store_export import export_for_store
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.runtime.test_eviction import SETTINGS as EVICTING
from tests.runtime.test_eviction import ReplacedIds

STEPS = (5, 20, 20, 40)
"""Of the checkpoints, at the least; two are of the same step."""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples/serving_store.py"
    spec = importlib.util.spec_from_file_location("serving_store", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bits(store: Any) -> dict[str, Any]:
    """All that a store has, as bytes."""
    parts = {"rows": store.rows, "shared": store.shared_rows, "dense": {"": store.dense}}
    return {
        f"{part}.{name}": {id: row.tobytes() for id, row in rows.items()}
        for part, tables in parts.items()
        for name, rows in tables.items()
    }


def trained(folder: Path, *settings: str, steps: tuple[int, ...] = STEPS) -> tuple[Runtime, list[Path]]:
    """A run, and its checkpoints at some steps."""
    common = ["checkpoint.keep=9", "knobs.hot_budget_bytes=8KiB", "knobs.reclassify_every=10", "knobs.prefetch_depth=3"]
    runtime = assembling.assemble(
        load_config("tiny", {}, [f"run.steps={steps[-1]}", *common, *settings]),
        options=RunOptions(rows=folder / "rows"),
    )
    saved: list[Path] = []
    for _ in runtime.run():
        while len(saved) < len(steps) and steps[len(saved)] <= runtime.step_number:
            saved.append(checkpoint.save(runtime.parts, folder / "checkpoints"))
    return runtime, saved


@pytest.mark.parametrize("settings", [
    pytest.param(("data.ids=raw", "knobs.admit_after=2", "data.shared_rows=3"), id="raw"),
    pytest.param(
        ("data.ids=raw", "data.max_table_rows=60", "data.shared_rows=2", "run.host_memory=1MiB"), id="raw on a disk",
        marks=pytest.mark.slow,
    ),
    pytest.param(("run.row_precision=fp16",), id="rows", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_full_export_and_what_changed_since_replayed_equal_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: ModuleType, settings: tuple[str, ...]
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    runtime, saved = trained(tmp_path, *settings)
    parts = replayed(tmp_path, saved, example, runtime)
    written = [sum(table["written"] for table in part["tables"]) for part in parts]
    assert [count > 0 for count in written] == [part["dense"] for part in parts] == [True, True, False, True]


@pytest.mark.slow
def test_ids_that_lost_their_rows_to_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: ModuleType
) -> None:
    monkeypatch.setattr(assembling, "open_source", lambda config, **_: RawIds(ReplacedIds(config), config))
    runtime, saved = trained(tmp_path, *EVICTING, steps=(70, 150, 200, 260))
    parts = replayed(tmp_path, saved, example, runtime)
    sums = [{name: sum(table[name] for table in part["tables"]) for name in ("new", "removed")} for part in parts]
    assert runtime.state.input.raw_ids is not None
    assert 0 < sum(part["removed"] for part in sums) <= runtime.state.input.raw_ids.counts()["evicted"]
    assert sum(part["new"] - part["removed"] for part in sums) == runtime.state.input.raw_ids.counts()["keys"]


def replayed(folder: Path, saved: list[Path], example: ModuleType, runtime: Runtime) -> list[dict[str, Any]]:
    """Replay a full export and what changed since into a store, and compare it with the run. Returns the heads of the exports."""
    store, last = example.Store(), example.Store()
    for number, (since, newer) in enumerate(zip([None, *saved], saved, strict=False)):
        export_for_store(newer, since, folder / f"part-{number}")
        store.apply(folder / f"part-{number}")
    export_for_store(saved[-1], None, folder / "last")
    last.apply(folder / "last")
    assert bits(store) == bits(last)
    assert (store.step, store.at) == (runtime.step_number, last.at)

    parts = [json.loads((folder / f"part-{number}" / "store.json").read_text()) for number in range(len(saved))]
    for index, (table, entry) in enumerate(zip(runtime.source.tables, parts[-1]["tables"], strict=True)):
        weight_RD = runtime.store.contents.export(index)[0]
        if (keys := runtime.state.input.raw_ids) is None:
            assert len(store.rows[table.name]) == table.rows
            expected = dict(enumerate(weight_RD))
        else:
            keys.counts()  # settles all steps
            id_K, key_K = keys.keys.keys_of(index)
            expected = dict(zip(key_K.tolist(), weight_RD[id_K], strict=True))
            strangers = np.array([2**63 - 1, -(2**63), *range(10**6, 10**6 + 50)])
            bags = np.arange(len(strangers) * len(runtime.source.tables) + 1)
            ids = keys.keys.look_up(np.repeat(strangers, len(runtime.source.tables)), bags)
            for id, row in zip(strangers.tolist(), ids[index :: len(runtime.source.tables)].tolist(), strict=True):
                assert store.row(table.name, id).tobytes() == weight_RD[row].tobytes()
        assert {id: row.tobytes() for id, row in expected.items()} == bits(store)[f"rows.{table.name}"]
        assert entry["ids"] == len(expected)
    return parts


def made(
    folder: Path, step: int, keys: list[int], weight: Any, shared: int = 2, without: tuple[int, ...] = (), **run: Any
) -> Path:
    """A checkpoint of a table of raw ids. `without`: the places of keys that have left."""
    folder.mkdir(exist_ok=True)
    draft, weight = Draft(DISK, folder / "checkpoints", step), np.array(weight, dtype=np.float32)
    rows = np.arange(len(weight), dtype=np.uint32)
    draft.arrays("rows-00000.safetensors", {"row": rows, "weight": weight, "optimizer_state": weight})
    arrays = {"shared_T": np.array([shared]), "tables/keys_0": np.array(keys), "tables/without_0": np.array(without)}
    arrays = {f"keys/{name}": array.astype(np.int64) for name, array in arrays.items()}
    draft.arrays("state.safetensors", arrays)
    table = {"name": "C1", "rows": len(weight), "dim": weight.shape[1], "first_row": 0}
    run = {"tables": [table], "seed": 0, **run}
    draft.json("state.json", {"run": run, "ranks": 1, "state": {"keys": {"tables": {}}, "step": step}})
    return draft.commit({"version": "0"})


def test_rows_are_compared_by_key_where_they_have_other_owners(tmp_path: Path, example: ModuleType) -> None:
    """Of keys 1 to 5, 1 stays as it is, 2 changes, 3 moves to the row of 4 with its values, 4 has no row any more, 6 gets the row
    of 3 with equal values, and 5 moves to a row that nobody had."""
    older = made(tmp_path, 1, [1, 2, 3, 4, 5, 8], [[0], [1], [11], [12], [13], [14], [15], [99]], without=(5,))
    newer = made(tmp_path, 2, [1, 2, 6, 3, 7, 5], [[0], [9], [11], [-12], [13], [13], [17], [15]])
    for since, path, out in ((None, older, "full"), (older, newer, "changes"), (None, newer, "last")):
        export_for_store(path, since, tmp_path / out)
    store, last = example.Store(), example.Store()
    store.apply(tmp_path / "full")
    store.apply(tmp_path / "changes")
    last.apply(tmp_path / "last")
    assert bits(store) == bits(last)
    [table] = json.loads((tmp_path / "changes/store.json").read_text())["tables"]
    assert {name: table[name] for name in ("ids", "written", "new", "moved", "removed")} == {
        "ids": 6, "written": 5, "new": 2, "moved": 2, "removed": 1
    }  # fmt: skip
    with pytest.raises(ValueError, match="must be applied to .*step-000000001.*, got a store at step 2"):
        store.apply(tmp_path / "changes")


WEIGHT = [[0.0], [1.0], [2.0], [3.0]]


@pytest.mark.parametrize(("other", "rule"), [
    ({"step": 3}, "must be at most that of .*step-000000002, 2, got 3"),
    ({"weight": [*WEIGHT, [4.0]]}, "table 'C1' of .* must be as in .*, 4 rows of dim 1, F32, got 5 rows of dim 1, F32"),
    ({"weight": [[0.0, 0.0]] * 4}, "table 'C1' .* 4 rows of dim 1, F32, got 4 rows of dim 2, F32"),
    ({"seed": 5}, r"who shares which row \(run.seed\) of"),
    ({"shared": 1}, r"shared rows of the tables of .*, \[2\], got \[1\]"),
    ({"keys": [7, 7]}, "keys of table 'C1' .* must be distinct, got 7 twice"),
    ({"keys": [7, 8], "without": (2,)}, r"rows without a key of table 'C1' .* must lie in \[0, 2\), got 2"),
    ({"keys": [7, 8, 9]}, "must have rows for 3 keys and at least 1 shared one, got 4 rows, 2 of them shared"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], rule: str
) -> None:
    newer = made(tmp_path, 2, [7], WEIGHT)
    older = made(tmp_path / "other", **{"step": 1, "keys": [7], "weight": WEIGHT, **other})
    out = tmp_path / "out"
    words = ["checkpoint", "export", str(newer), "--since", str(older), "--out", str(out)]
    assert main(words) == 5
    error = capsys.readouterr().err
    assert re.search(rule, error), error
    assert not out.exists()
    assert main([*words, "--as", "npy"]) == 2
    assert "--since goes with --as store" in capsys.readouterr().err


def test_diff_counts_keys_and_verify_finds_keys_that_are_not_distinct(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = made(tmp_path, 1, [1, 2, 3], [[0]] * 9), made(tmp_path, 2, [1, 3, 4, 5], [[0]] * 9)
    assert main(["checkpoint", "diff", str(older), str(newer), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["differences"]
    assert [(each["file"], each["kind"], each["keys"]) for each in found] == [
        ("C1", "keys", {"new": 2, "removed": 1, "moved": 1}), ("state.json", "values", None)
    ]  # fmt: skip
    assert main(["checkpoint", "diff", str(older), str(newer)]) == 1
    assert re.search("^C1 +keys +2 new, 1 removed, 1 moved$", capsys.readouterr().out, flags=re.M)

    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert re.search(
        "^step-000000002 +raw ids +4 of them, distinct in each table$", capsys.readouterr().out, flags=re.M
    )
    made(tmp_path, 3, [1, 3, 1], [[0]] * 9)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 5
    printed = capsys.readouterr()
    assert "must be distinct, got 1 twice" in printed.out
    assert "1 of 3 checkpoints damaged: step-000000003 (" in printed.err
