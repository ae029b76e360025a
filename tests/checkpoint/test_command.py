"""The command ``adaptive-rec checkpoint``."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adaptive_rec.checkpoint import difference, generation
from adaptive_rec.checkpoint import export as exporting
from adaptive_rec.checkpoint.draft import Draft
from adaptive_rec.checkpoint.files import DISK, DiskOutput
from adaptive_rec.checkpoint.history import chain
from adaptive_rec.cli import main


def make(
    run: Path, step: int, changed: float = 0.0, on: Path | None = None, without: list[int] | None = None, **more: Any
) -> Path:
    """A checkpoint of two tables, one of them of bfloat16; `changed` is added to two rows of the other. One that builds `on`
    another holds only these two. `without`: which of the rows behind the first one have no raw id; None where ids are rows."""
    rng = np.random.default_rng(1)
    weight = rng.random((100, 8)).astype(np.float32)
    weight[[3, 70]] += np.float32(changed)
    narrow = rng.integers(0, 1 << 14, (40, 4)).astype(np.uint16)
    run.mkdir(exist_ok=True)
    draft = Draft(DISK, run / "checkpoints", step)
    lines = np.arange(100) if on is None else np.array([3, 70])
    rows = {"row": lines.astype(np.uint32), "weight": weight[lines]}
    draft.arrays("rows-00000.safetensors", rows | {"optimizer_state": np.ones((len(lines), 1), np.float32)})
    if on is None:
        rows = {"row": np.arange(100, 140, dtype=np.uint32), "weight": narrow}
        draft.arrays(
            "rows-00001.safetensors", rows | {"optimizer_state": np.ones((40, 0), np.float32)}, {"weight": "BF16"}
        )
    tables = [
        {"name": "C1", "rows": 100, "dim": 8, "first_row": 0},
        {"name": "../odd", "rows": 40, "dim": 4, "first_row": 100},
    ]
    if without is not None:
        more["state"] = {"keys": {}}
        keys = {"keys/shared_T": np.ones(2, np.int64)}
        for table, lacking in enumerate((without, [])):
            keys[f"keys/tables/keys_{table}"] = np.arange(1, 40)
            keys[f"keys/tables/without_{table}"] = np.array(lacking, np.int64)
        draft.arrays("state.safetensors", keys)
    draft.json("state.json", {"run": {"tables": tables}, "step": step, "knobs": {"alpha": 0.5}} | more)
    return draft.commit({"version": "0"}, chain(DISK, on)[-1].since if on else None)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 800):
        make(tmp_path / "run", step)
    return tmp_path / "run"


def printed(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main(["checkpoint", *map(str, words)]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_list_shows_each_checkpoint_and_its_damage(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    spoil(run / "checkpoints/step-000000005/MANIFEST.json")
    lines = printed(capsys, "list", run).splitlines()
    assert lines[0].split() == ["checkpoint", "step", "written", "kind", "builds", "on", "files", "rows", "size"]
    assert "step-000000005" in lines[1]
    assert "MANIFEST.json must end with its crc32" in lines[1]
    assert lines[2].split()[:2] == ["step-000000800", "800"]
    assert len(lines) == 3
    damaged, good = json.loads(printed(capsys, "list", run, "--json"))
    assert damaged["error"]
    assert (good["step"], good["format"], good["files"], good["error"]) == (800, 3, 3, None)
    folder = run / "checkpoints/step-000000800"
    assert good["rows_bytes"] == sum(path.stat().st_size for path in folder.glob("rows-*"))
    assert good["size_bytes"] == good["rows_bytes"] + (folder / "state.json").stat().st_size
    assert (good["kind"], good["builds_on"]) == ("full", None)


@pytest.fixture
def chained(tmp_path: Path) -> Path:
    """Of checkpoints 5, 6 and 7 each builds on the one before; 9 is of all rows."""
    older = None
    for step, changed in ((5, 0.0), (6, 1.0), (7, 2.0)):
        older = make(tmp_path / "chained", step, changed, older)
    make(tmp_path / "chained", 9, 2.0)
    return tmp_path / "chained"


def test_list_shows_what_each_builds_on_and_where_that_is_missing(
    capsys: pytest.CaptureFixture[str], chained: Path
) -> None:
    lines = printed(capsys, "list", chained).splitlines()
    assert [line.split()[4:6] for line in lines[1:4]] == [
        ["full", "3"], ["changes", "step-000000005"], ["changes", "step-000000006"]
    ]  # fmt: skip
    assert not any("cannot be used" in line for line in lines)
    shutil.rmtree(chained / "checkpoints/step-000000005")
    lines = [line for line in printed(capsys, "list", chained).splitlines() if not line.startswith(" ")]
    assert len(lines) == 4
    for line in lines[1:3]:
        assert "step-000000006 builds on step-000000005, which cannot be used" in line
        assert line.split()[4] == "changes"
    assert lines[3].split()[4] == "full"
    entries = json.loads(printed(capsys, "list", chained, "--json"))
    assert [(entry["kind"], entry["builds_on"], entry["error"] is None) for entry in entries] == [
        ("changes", "step-000000005", False), ("changes", "step-000000006", False), ("full", None, True)
    ]  # fmt: skip


def test_verify_of_one_checkpoint_includes_its_bases(capsys: pytest.CaptureFixture[str], chained: Path) -> None:
    found = json.loads(printed(capsys, "verify", chained / "checkpoints/step-000000006", "--json"))
    assert [entry["checkpoint"] for entry in found["files"]] == ["step-000000005"] * 3 + ["step-000000006"] * 2
    assert "2 of 2 whole" in printed(capsys, "verify", chained / "checkpoints/step-000000006")
    spoil(chained / "checkpoints/step-000000005/rows-00001.safetensors")
    text = printed(capsys, "verify", chained / "checkpoints/step-000000006", code=5)
    assert "0 of 2 whole" in text
    assert "4 of 4" not in text
    assert "1 of 1 whole" in printed(capsys, "verify", chained / "checkpoints/step-000000009")


def test_verify_names_the_checkpoints_that_build_on_a_damaged_one(
    capsys: pytest.CaptureFixture[str], chained: Path
) -> None:
    spoil(chained / "checkpoints/step-000000006/rows-00000.safetensors")
    text = printed(capsys, "verify", chained, code=5)
    assert re.search("^step-000000007  +builds on step-000000006, which is damaged$", text, flags=re.M)
    assert "\n2 of 4 whole" in text
    assert text.splitlines()[-1] == (
        "error: 1 of 4 checkpoints damaged: step-000000006; "
        "1 of 4 checkpoints build on one that cannot be used: step-000000007 (see docs/faq.md#damaged-checkpoint)"
    )
    found, _ = json.JSONDecoder().raw_decode(printed(capsys, "verify", chained, "--json", code=5))
    assert (found["damaged"], found["lost_with_them"]) == (["step-000000006"], ["step-000000007"])
    shutil.rmtree(chained / "checkpoints/step-000000006")
    text = printed(capsys, "verify", chained, code=5)
    assert "error: 1 of 3 checkpoints build on one that cannot be used: step-000000007" in text


def test_a_checkpoint_of_changes_is_found_by_any_path(
    capsys: pytest.CaptureFixture[str], chained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (chained / "latest").symlink_to(chained / "checkpoints/step-000000007")
    assert "3 of 3 whole" in printed(capsys, "verify", chained / "latest")
    monkeypatch.chdir(chained / "checkpoints/step-000000007")
    assert "3 of 3 whole" in printed(capsys, "verify", ".")
    assert "are the same" in printed(capsys, "diff", ".", "../../latest")


def test_changes_are_compared_and_exported_with_what_they_build_on(
    capsys: pytest.CaptureFixture[str], chained: Path
) -> None:
    folder = chained / "checkpoints"
    found = json.loads(printed(capsys, "diff", folder / "step-000000007", folder / "step-000000009", "--json", code=1))
    assert [each["name"] for each in found["differences"]] == ["step"], "rows are the same"
    found = json.loads(printed(capsys, "diff", folder / "step-000000005", folder / "step-000000007", "--json", code=1))
    [weight] = [each for each in found["differences"] if each["name"] == "weight"]
    assert (weight["file"], weight["rows"], weight["largest"]) == ("C1", 2, pytest.approx(2.0, rel=1e-5))
    for name in ("step-000000007", "step-000000009"):
        printed(capsys, "export", folder / name, "--out", chained / name)
    for name in ("C1.safetensors", "table-0001.safetensors"):
        assert (chained / "step-000000007" / name).read_bytes() == (chained / "step-000000009" / name).read_bytes()
    spoil(folder / "step-000000005/rows-00001.safetensors")
    assert "is damaged" in printed(capsys, "export", folder / "step-000000007", "--out", chained / "no", code=5)


def test_verify_lists_each_file_and_its_speed(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    lines = printed(capsys, "verify", run).splitlines()
    assert [line.split()[1] for line in lines[1:-1]] == [
        "rows-00000.safetensors",
        "rows-00001.safetensors",
        "state.json",
    ] * 2
    assert all(line.endswith("whole") for line in lines[1:-1])
    assert lines[-1] == "2 of 2 whole (9.9 KiB)"
    answer = json.loads(printed(capsys, "verify", run / "checkpoints/step-000000800", "--json"))
    assert answer["damaged"] == []
    assert [entry["checkpoint"] for entry in answer["files"]] == ["step-000000800"] * 3
    assert all(entry["seconds"] > 0 and entry["error"] is None for entry in answer["files"])


def test_verify_shows_the_speed_of_large_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    draft = Draft(DISK, tmp_path, 1)
    draft.arrays("rows-00000.safetensors", {"weight": np.zeros((1 << 18, 4), np.float32)})
    lines = printed(capsys, "verify", draft.commit({})).splitlines()
    assert re.search(r"4.0 MiB  \d+\.\d\d GB/s  whole$", lines[1])
    assert re.fullmatch(r"1 of 1 whole \(4.0 MiB, \d+\.\d\d GB/s\)", lines[2])


def test_verify_names_all_damage_and_fails(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    spoil(run / "checkpoints/step-000000800/rows-00001.safetensors")
    spoil(run / "checkpoints/step-000000800/state.json")
    (run / "checkpoints/step-000000005/state.json").unlink()
    text = printed(capsys, "verify", run, code=5)
    assert "rows-00001.safetensors is damaged between byte 0 and" in text
    assert text.count("state.json is damaged") == 1
    assert "state.json is missing" in text
    assert len(re.findall("whole$", text, flags=re.M)) == 1
    assert "0 of 2 whole" in text
    last = text.splitlines()[-1].removesuffix(" (see docs/faq.md#damaged-checkpoint)")
    assert last == "error: 2 of 2 checkpoints damaged: step-000000005, step-000000800"


def test_diff_of_equal_checkpoints_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", 5), make(tmp_path / "b", 5)
    assert "are the same, bit by bit" in printed(capsys, "diff", a, b)
    assert json.loads(printed(capsys, "diff", a, b, "--json"))["differences"] == []


def test_diff_leaves_out_what_time_decides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def of(seconds: float, count: int, steps: int = 5) -> dict[str, Any]:
        sent, on_disk = {"host_to_device_bytes": count}, {"rows_read": count}
        return {
            "recorder": {"seconds": seconds, "last": {**sent, "disk_rows_read": count, "steps": steps}},
            "store": {"traffic": sent, "disk": on_disk}, "disk_reported": {**on_disk, "wait_seconds": seconds},
            "reclassifier": {"judged_at": {**sent, "disk_rows_read": count}}, "times": {"seconds": {"load": seconds}},
            "followed": {"file": "a.csv", "place": count, "rows": count, "tail": "0a" * count, "first_row": count},
        }  # fmt: skip

    a, b = make(tmp_path / "a", 5, state=of(1.0, 3)), make(tmp_path / "b", 5, state=of(2.0, 4))
    assert "are the same, bit by bit" in printed(capsys, "diff", a, b)
    c = make(tmp_path / "c", 5, state=of(1.0, 3, steps=6))
    found = json.loads(printed(capsys, "diff", a, c, "--json", code=1))["differences"]
    assert [each["name"] for each in found] == ["state.recorder.last.steps"]


def test_diff_reports_rows_and_distances(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make(tmp_path / "a", 5)
    make(tmp_path / "b", 6, changed=0.25, loss=0.5)
    found = json.loads(printed(capsys, "diff", tmp_path / "a", tmp_path / "b", "--json", code=1))["differences"]
    values = {each["name"]: each for each in found}
    assert set(values) == {"weight", "step", "loss"}
    assert (values["weight"]["file"], values["weight"]["rows"], values["weight"]["of_rows"]) == (
        "C1",
        2,
        100,
    )
    assert values["weight"]["largest"] == pytest.approx(0.25, rel=1e-5)
    assert values["weight"]["mean"] == pytest.approx(0.25 * 2 / 100, rel=1e-5)
    assert (values["step"]["a"], values["step"]["b"]) == ("5", "6")
    assert values["loss"]["kind"] == "only in B"
    lines = printed(capsys, "diff", tmp_path / "a", tmp_path / "b", code=1).splitlines()
    assert next(line for line in lines if "weight" in line).split() == [
        "C1", "weight", "2", "of", "100", "0.25", "0.005"
    ]  # fmt: skip


def test_diff_compares_the_rows_that_have_an_id_on_either_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run draws rows ahead, as far as it has read by chance. Rows 3 and 70 differ; those from 40 on have no id."""
    a = make(tmp_path / "a", 10, without=[2])
    printed(capsys, "diff", a, make(tmp_path / "b", 10, changed=0.25, without=[2]))
    text = printed(capsys, "diff", a, make(tmp_path / "c", 10, changed=0.25, without=[]), code=1)
    assert re.search(r"^C1 +weight +1 of 100 +0.25 ", text, re.M)


def test_diff_compares_what_can_be_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sides = {
        "a": {
            "w": np.array([1.0, np.nan, np.inf]),
            "t": np.zeros(3, np.float32),
            "s": np.zeros((2, 3)),
            "x": np.zeros(1),
        },
        "b": {"w": np.array([1.0, np.nan, 2.0]), "t": np.zeros(3, np.float64), "s": np.zeros((3, 2)), "y": np.zeros(1)},
    }
    for name, arrays in sides.items():
        (tmp_path / name).mkdir()
        draft = Draft(DISK, tmp_path / name / "checkpoints", 1)
        draft.arrays("state.safetensors", arrays)
        row = {"row": np.arange(2, dtype=np.uint32), "weight": np.ones((2, 1)), "optimizer_state": np.ones((2, 0))}
        draft.arrays("rows-00000.safetensors", row)
        draft.json("state.json", {"run": {"tables": [{"name": "C1", "rows": 2, "dim": 1, "first_row": 0}]}})
        draft.commit({})
    found = json.loads(printed(capsys, "diff", tmp_path / "a", tmp_path / "b", "--json", code=1))["differences"]
    values = {each["name"]: each for each in found}
    assert {name: each["kind"] for name, each in values.items()} == {
        "w": "values", "t": "type", "s": "shape", "x": "only in A", "y": "only in B",
    }  # fmt: skip
    assert (values["w"]["rows"], values["w"]["largest"]) == (1, None)
    assert (values["s"]["a"], values["s"]["b"]) == ("[2, 3]", "[3, 2]")
    assert "not a number" in printed(capsys, "diff", tmp_path / "a", tmp_path / "b", code=1)


def test_diff_takes_a_runs_newest_whole_checkpoint_and_says_what_it_skips(
    capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    spoil(run / "checkpoints/step-000000800/state.json")
    text = printed(capsys, "diff", run, run / "checkpoints/step-000000005")
    assert "note: step-000000800 is skipped: " in text
    assert "are the same" in text
    assert "is damaged" in printed(capsys, "diff", run, run / "checkpoints/step-000000800", code=5)


@pytest.mark.parametrize("form", ["safetensors", "npy", "torchrec"])
def test_export_writes_the_tables_as_others_read_them(capsys: pytest.CaptureFixture[str], run: Path, form: str) -> None:
    out = run.parent / "out"
    printed(capsys, "export", run, "--out", out, "--as", form)
    saved = run / "checkpoints/step-000000800"
    first, second = (load_file(saved / f"rows-{number:05d}.safetensors")["weight"] for number in range(2))
    if form == "torchrec":
        state = load_file(out / "state_dict.safetensors")
        assert set(state) == {"embedding_bags.C1.weight", "embedding_bags.table-0001.weight"}, (
            "a name that leads elsewhere is not taken"
        )
        bags = torch.nn.ModuleDict({"C1": torch.nn.EmbeddingBag(100, 8), "table-0001": torch.nn.EmbeddingBag(40, 4)})
        module = torch.nn.ModuleDict({"embedding_bags": bags})
        module.load_state_dict(state)
        assert torch.equal(bags["C1"].weight, first)  # type: ignore[arg-type]
        assert torch.equal(state["embedding_bags.table-0001.weight"], second)
    elif form == "safetensors":
        assert torch.equal(load_file(out / "C1.safetensors")["weight"], first)
        assert torch.equal(load_file(out / "table-0001.safetensors")["weight"], second)
    else:
        assert np.array_equal(np.load(out / "C1.npy"), first.numpy())
        assert np.array_equal(np.load(out / "table-0001.npy"), second.float().numpy())
    assert len(list(out.iterdir())) == (2 if form == "torchrec" else 3)
    assert "can be made: File exists" in printed(capsys, "export", run, "--out", out, code=2)


def test_export_writes_larger_tables_in_parts(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    out = run.parent / "out"
    printed(capsys, "export", run, "--out", out, "--part-size", "1KiB")  # 32 rows of the first table
    whole = load_file(run / "checkpoints/step-000000800/rows-00000.safetensors")["weight"]
    tables = json.loads((out / "tables.json").read_text())["tables"]
    assert [table["name"] for table in tables] == ["C1", "../odd"]
    names = [f"C1-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    assert [each["file"] for each in tables[0]["files"]] == names
    assert torch.equal(torch.cat([load_file(out / name)["weight"] for name in names]), whole)
    assert [each["file"] for each in tables[1]["files"]] == ["table-0001.safetensors"]
    refused = {"--as npy": "--part-size goes with --as safetensors", "--part-size 1.5": "--part-size must be a number of bytes"}
    for words, rule in {**refused, "--part-size 31": "parts must have room for a row of C1, 32 bytes, got 31"}.items():
        text = printed(capsys, "export", run, "--out", run.parent / "no", "--part-size", "1KiB", *words.split(), code=2)
        assert rule in text
    text = printed(capsys, "import", out, "--config", "tiny", "--out", run.parent / "no", code=2)
    assert "tables must be in one file each to be imported" in text


@pytest.mark.parametrize("form", ["safetensors", "npy", "torchrec", "store"])
def test_an_export_is_there_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], run: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = run.parent / "deep" / "out", 0

    def failing(real: Callable[..., Any], nth: int) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*words)

        return call

    for nth in range(1, 100):
        calls = 0
        with monkeypatch.context() as patched:
            for name in ("write", "sync"):
                patched.setattr(DiskOutput, name, failing(getattr(DiskOutput, name), nth))
            for name in ("create", "make_folder"):
                patched.setattr(DISK, name, failing(getattr(DISK, name), nth), raising=False)
            code = main(["checkpoint", "export", str(run), "--out", str(out), "--as", form])
        if code == 0:
            break
        assert re.fullmatch(rf"error: {out}\S*: \w+ failed: No space left on device\n", capsys.readouterr().err)
        assert code == 5
        assert list(out.parent.iterdir()) == []
    assert nth > 5
    files = list(out.iterdir())
    assert len(files) == {"torchrec": 2}.get(form, 3)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_an_export_that_is_terminated_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_handled(*_: object) -> None:
        raise AssertionError("SIGTERM ends the process")

    before = signal.signal(signal.SIGTERM, not_handled)
    monkeypatch.setattr(DiskOutput, "write", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", "export", str(run), "--out", str(run.parent / "out")])
        assert signal.getsignal(signal.SIGTERM) is not_handled
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def removing(path: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    """The run removes a checkpoint just before this is called."""

    def call(*words: Any) -> Any:
        shutil.rmtree(path, ignore_errors=True)
        return real(*words)

    return call


@pytest.mark.parametrize("name", ["read_manifest", "verify_file"])
def test_verify_of_a_run_leaves_out_what_the_run_removed_meanwhile(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    old = run / "checkpoints/step-000000005"
    monkeypatch.setattr(generation, name, removing(old, getattr(generation, name)))
    text = printed(capsys, "verify", run)
    assert "1 of 1 whole" in text
    assert text.endswith("note: step-000000005 was removed in the meantime\n")
    assert text.count("step-000000005") == 1


def test_verify_of_a_missing_checkpoint_fails(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    assert "checkpoints damaged" in printed(capsys, "verify", run / "checkpoints/step-000000007", code=5)


def test_diff_and_export_of_a_running_run_take_its_present_checkpoints(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, other = run / "checkpoints/step-000000800", make(run.parent / "other", 5)
    kept = newest.rename(run.parent / "kept")
    for words, module, name in (
        (["diff", run, other], difference, "verify_all"),
        (["export", run, "--out", run.parent / "out"], exporting, "SavedRows"),
    ):
        shutil.copytree(kept, newest)
        with monkeypatch.context() as patched:
            patched.setattr(module, name, removing(newest, getattr(module, name)))
            printed(capsys, *words)
        assert not newest.exists()
    with monkeypatch.context() as patched:
        patched.setattr(difference, "verify_all", removing(other, difference.verify_all))
        assert str(other) in printed(capsys, "diff", run, other, code=5), "of one that was named there is no other"


def test_a_damaged_checkpoint_is_not_exported(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    saved = run / "checkpoints/step-000000800"
    spoil(saved / "rows-00000.safetensors")
    assert "is damaged" in printed(capsys, "export", saved, "--out", run.parent / "out", code=5)
    assert not (run.parent / "out").exists()


def test_a_path_that_is_no_run_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (
        ["list", tmp_path],
        ["verify", tmp_path],
        ["diff", tmp_path, tmp_path],
        ["export", tmp_path, "--out", "x"],
    ):
        assert "must be a run directory with a checkpoint" in printed(capsys, *words, code=2)
    assert "format 1" in printed(capsys, "verify", old(tmp_path), code=5)


def old(run: Path) -> Path:
    (run / "checkpoints" / "step-000000003").mkdir(parents=True)
    (run / "checkpoints" / "step-000000003" / "checkpoint.json").write_text("{}")
    return run
