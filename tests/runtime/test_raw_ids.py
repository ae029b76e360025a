"""Training on raw ids: as training on the same ids as rows, also after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from adaptive_rec import checkpoint
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.embedding.disk import row_log
from adaptive_rec.errors import ConfigError
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.finished_runs import FinishedRun
from tests.matrix import each, grid
from tests.settings import AS_IN_MEMORY

COMMON = ["run.precision=float64", "knobs.reclassify_every=10", "knobs.hot_budget_bytes=40KiB", "eval.max_samples=300"]
RAW = ["data.ids=raw"]


def run_of(folder: Path, *settings: str) -> Runtime:
    return assemble(load_config("tiny", {}, [*COMMON, *settings]), options=RunOptions(rows=folder))


def keys_of(runtime: Runtime) -> Any:
    assert isinstance(runtime.source, RawIds)
    runtime.source.counts()  # settles all steps
    return runtime.source.keys


def assert_rows_of_keys(raw: Runtime, plain: Runtime) -> int:
    """Check each key's row; returns how many keys there are."""
    known = 0
    for table in range(len(plain.source.tables)):
        ids, key_R = keys_of(raw).keys_of(table)
        for mine, theirs in zip(raw.store.contents.export(table), plain.store.contents.export(table), strict=True):
            np.testing.assert_array_equal(mine[ids], theirs[key_R])
        known += len(key_R)
    return known


@grid(lambda case: True, each, policy=["hotline", "hybrid", "slipstream", "device_only"], on_disk=[False, True], depth=[0, 6])
def test_admitting_all_ids_trains_as_ids_that_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, on_disk: bool, depth: int
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    settings = [f"knobs.policy={policy}", f"knobs.prefetch_depth={depth}", "run.steps=30"]
    where = ["run.host_memory=1MiB", *AS_IN_MEMORY] if on_disk else []
    raw, plain = run_of(tmp_path, *settings, *RAW, *where), run_of(tmp_path, *settings)
    for runtime in (raw, plain):
        for _ in runtime.run():
            pass

    assert assert_rows_of_keys(raw, plain) > 500
    assert raw.reports.totals()["loss_sum"] == plain.reports.totals()["loss_sum"]
    assert keys_of(raw)
    counts = raw.state.input.raw_ids.counts()
    assert counts["refused"] == counts["lookups_shared"] == 0
    assert counts["lookups"] == raw.reports.totals()["lookups"]


@pytest.mark.parametrize(("depths", "steps"), [((0, 64), 90), pytest.param((0, 9, 64), 160, marks=pytest.mark.slow)], ids=str)
def test_a_changed_knob_takes_effect_with_the_same_batch_however_far_is_read_ahead(
    tmp_path: Path, depths: tuple[int, ...], steps: int
) -> None:
    found = []
    for depth in depths:
        runtime = run_of(tmp_path, *RAW, f"knobs.prefetch_depth={depth}", f"run.steps={steps}", "data.synthetic.samples=40000")
        for _ in runtime.run():
            if runtime.step_number == steps // 80 * 10:  # in force 68 batches later: none can have been read ahead so far
                runtime.mailbox.change_knobs(admit_after=4)
        found.append((runtime.reports.totals()["loss_sum"], runtime.state.input.raw_ids.counts()))
    assert found == [found[0]] * len(depths)
    assert found[0][1]["lookups_shared"] > 0


@pytest.mark.parametrize(
    ("admit_after", "policy"),
    [
        (2, "slipstream"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, "hotline"), (3, "hotline"), (1, "random_skip"))),
    ],
)
def test_a_resumed_run_goes_on_bit_by_bit(tmp_path: Path, admit_after: int, policy: str) -> None:
    settings = [*RAW, f"knobs.policy={policy}", f"knobs.admit_after={admit_after}"]
    settings += ["data.shared_rows=4", "knobs.prefetch_depth=5"]
    unbroken = run_of(tmp_path, *settings, "run.steps=50")
    list(unbroken.run())
    first = run_of(tmp_path, *settings, "run.steps=50")
    reports = first.run()
    while first.step_number < 23:
        next(reports)
    folder = checkpoint.save(first.parts, tmp_path / "checkpoints")
    reports.close()
    second = run_of(tmp_path, *settings, "run.steps=50")
    checkpoint.load(second.parts, folder)
    list(second.run())

    assert second.reports.totals()["loss_sum"] == unbroken.reports.totals()["loss_sum"]
    for table in range(len(unbroken.source.tables)):
        np.testing.assert_array_equal(keys_of(second).keys_of(table)[1], keys_of(unbroken).keys_of(table)[1])
        for mine, theirs in zip(second.store.contents.export(table), unbroken.store.contents.export(table), strict=True):
            taken = keys_of(second).end_T[table]
            np.testing.assert_array_equal(mine[:taken], theirs[:taken])


ON_DISK = ("run.host_memory=1MiB", *AS_IN_MEMORY)


@pytest.mark.parametrize(
    ("where", "stops"),
    [(ON_DISK, (8, 15, 30)), *(pytest.param(where, (20, 35, 60), marks=pytest.mark.slow) for where in ((), ON_DISK))],
    ids=["disk-short", "memory", "disk"],
)
def test_a_run_of_the_command_line_resumes_with_its_ids(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: tuple[str, ...],
    stops: tuple[int, ...],
) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    words = "--set data.ids=raw --set knobs.admit_after=2 --set knobs.hot_budget_bytes=8KiB".split()
    words += "--set checkpoint.every_steps=7 --no-serve".split()
    where = tuple(f"--set={setting}" for setting in where)

    def train(name: str, steps: int, *more: str) -> dict[str, int]:
        assert main(["train", "tiny", "--set", f"run.steps={steps}", *words, *more, "--out", str(tmp_path / name)]) == 0
        return dict(json.loads((tmp_path / name / "summary.json").read_text())["keys"])

    first, second, last = stops
    expected = train("plain", last)
    train("run", first, *where)
    train("run", second, *where, "--resume")
    assert train("run", last, *where, "--resume") == expected
    assert expected["lookups_shared"] > 0

    capsys.readouterr()
    assert main(["checkpoint", "diff", str(tmp_path / "plain"), str(tmp_path / "run")]) == 0
    for command in (["eval"], ["checkpoint", "verify"], ["report"]):
        assert main([*command, str(tmp_path / "run")]) == 0
    for form in ("npy", "safetensors", "torchrec"):
        folder = tmp_path / form
        assert main(["checkpoint", "export", str(tmp_path / "run"), "--out", str(folder), "--as", form]) == 0
        assert (folder / "keys.safetensors").exists()
    keys, weights = load_file(tmp_path / "npy/keys.safetensors"), np.load(tmp_path / "npy/C1.npy")
    assert sum(len(each) for name, each in keys.items() if name.endswith(".key")) == expected["keys"]
    assert len(np.unique(keys["C1.key"])) == len(keys["C1.row"]) < len(weights)
    rows = ["--set", "data.ids=auto", "--set", "knobs.admit_after=1"]
    assert main(["train", "tiny", "--no-serve", "--resume", *rows, "--out", str(tmp_path / "run")]) == 5
    assert "data.ids of checkpoint" in capsys.readouterr().err


def test_what_cannot_have_raw_ids_is_refused_by_name(tmp_path: Path) -> None:
    settings = ["data.max_table_rows=4000000000", "data.table_rows=[2000000000,2000000000]"]
    with pytest.raises(ConfigError, match="at most 1,073,741,823 rows in all"):
        run_of(tmp_path, *RAW, *settings)


def test_commands_that_need_rows_by_number_refuse_raw_ids(
    tmp_path: Path, finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, run, tables = ["--set", "data.ids=raw"], finished_run("raw"), tmp_path / "tables"
    assert main(["checkpoint", "export", str(run), "--out", str(tables)]) == 0
    named = [
        (["predict", str(run), "--data", str(run / "config.toml"), "--out", "x.csv"], "was trained on synthetic data"),
        (["export", str(run), "--to", str(tmp_path / "to")], "was trained on synthetic data"),
        (["checkpoint", "import", str(tables), "--config", "tiny", "--out", str(tmp_path / "to")], "those of raw ids"),
        (["checkpoint", "import", str(tables), "--config", "tiny", *raw, "--out", str(tmp_path / "to")], "which id each row has"),
        (["train", "tiny", "--set", "data.shared_rows=3", "--no-serve", "--out", str(tmp_path / "to")], "shared_rows must be 1"),
    ]
    for words, rule in named:
        capsys.readouterr()
        assert main(words) > 1, words
        assert rule in capsys.readouterr().err
