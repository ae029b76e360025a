"""A run's disk that fills up, and other faults of a run's end: what is trained is scored and summarized all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.checkpoint import writing
from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import CheckpointError, ConfigError, DataError
from adaptive_rec.memory.disk import check_room, free_room
from adaptive_rec.policy.find import load_policy
from adaptive_rec.run import journal, training_run
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.system.durable import new_folder

TINY = [
    "run.device=cpu", "run.threads=1", "run.steps=12", "run.batch_size=8", "data.table_rows=[9, 5]", "model.bottom_mlp=[4]",
    "model.top_mlp=[4]", "model.embedding_dim=2", "data.synthetic.samples=400", "data.synthetic.test_samples=16",
    "knobs.report_every=1",
]  # fmt: skip
MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root, and a system that lets it")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return


def run_on(out: Path, *changes: str, **options: Any) -> TrainingRun:
    return TrainingRun(load_config(None, {}, [*TINY, *changes]), out, **options)


def events(out: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (out / journal.NAME).read_text().splitlines()]


def test_a_disk_that_fills_up_while_a_run_trains_leaves_its_score_and_its_summary(small_disk: Path) -> None:
    out = small_disk / "run"
    run = run_on(out, "checkpoint.every_steps=4")
    kinds = []
    for report in run.events():
        kinds.append(getattr(report, "kind", ""))
        if kinds[-1] == "checkpoint" and not (small_disk / "filler").exists():
            fill(small_disk)  # not while a checkpoint is being written: what it had taken would be free again
    assert "checkpoint_failed" in kinds
    summary = run.finish()
    assert summary["steps"] == 12
    assert summary["eval"]["samples"] == 16
    assert isinstance(run.failure, CheckpointError)
    assert "No space left" in str(run.failure)
    texts = [event.text for event in run.log.last_words]
    assert any("summary.json cannot be written: No space left" in text for text in texts)
    assert any("metrics.jsonl lacks " in text and "which could not be written: No space left" in text for text in texts)
    assert not any(path.name.startswith(".summary") for path in out.iterdir())
    (small_disk / "filler").unlink()
    again = run_on(out, "run.steps=14", resume=True)
    list(again.events())
    assert again.finish()["steps"] == 14
    assert again.failure is None


@pytest.mark.usefixtures("small_disk")
def test_a_run_says_that_it_could_not_be_saved_after_its_summary(
    small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = TrainingRun.events

    def filled(run: TrainingRun) -> Iterator[Any]:
        yield from begin(run)
        fill(small_disk)

    monkeypatch.setattr(TrainingRun, "events", filled)
    words = [word for setting in TINY for word in ("--set", setting)]
    assert main(["train", *words, "--no-serve", "--json", "--out", str(small_disk / "run")]) == CheckpointError.exit_code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["eval"]["samples"] == 16
    assert "error: the last checkpoint was not written: " in printed.err
    assert "No space left" in printed.err


def test_a_run_whose_disk_has_no_room_for_a_checkpoint_does_not_begin(small_disk: Path) -> None:
    with pytest.raises(CheckpointError, match=r"must have room for checkpoints: one takes [\d.]+ MiB, 4.0 MiB are free"):
        run_on(small_disk / "run", "data.table_rows=[90000, 90000]", "model.embedding_dim=8")
    assert list(small_disk.iterdir()) == []
    tight = run_on(small_disk / "run", "data.table_rows=[40000, 9]", "model.embedding_dim=8", "knobs.hot_budget_bytes=0")
    warnings = [event.text for event in tight.events() if getattr(event, "kind", "") == "warning"]
    assert any("a long run keeps up to 5" in text for text in warnings)


def test_room_is_that_of_the_nearest_folder_that_exists(small_disk: Path) -> None:
    assert check_room(small_disk / "a" / "b" / "checkpoints", 4 * MIB // 5) == ""
    assert "one takes 2.0 MiB, 4.0 MiB are free" in check_room(small_disk / "a" / "checkpoints", 2 * MIB)
    with pytest.raises(CheckpointError, match="must have room"):
        check_room(small_disk / "a" / "checkpoints", 5 * MIB)
    (small_disk / "checkpoints").mkdir()
    (small_disk / "checkpoints" / "rows").write_bytes(bytes(3 * MIB))
    assert check_room(small_disk / "checkpoints", 4 * MIB // 5) == ""
    assert check_room(small_disk / "checkpoints", 2 * MIB) != "", "a run that has a checkpoint goes on"


def test_room_is_looked_at_while_another_process_removes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that goes back to a checkpoint looks at the folder in which rank 0 removes newer ones."""
    scan, gone = os.scandir, tmp_path / "checkpoints" / "step-2"
    for step in ("step-1", "step-2"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
        (tmp_path / "checkpoints" / step / "rows").write_bytes(bytes(1000))

    def removing(path: Any) -> Any:
        if Path(path) == gone:
            (gone / "rows").unlink()
            gone.rmdir()
        return scan(path)

    monkeypatch.setattr("adaptive_rec.memory.disk.free_bytes", lambda folder: 0)
    assert free_room(tmp_path / "checkpoints") == 2000
    monkeypatch.setattr("os.scandir", removing)
    assert free_room(tmp_path / "checkpoints") == 1000
    assert not gone.exists()


def test_the_room_that_is_looked_for_is_what_a_checkpoint_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adaptive_rec.runtime import assemble

    looked_for = []
    monkeypatch.setattr(assemble, "check_room", lambda folder, one_bytes: looked_for.append(one_bytes) or "")
    run = run_on(tmp_path / "run", "data.table_rows=[90000, 50000]", "model.embedding_dim=8")
    list(run.events())
    run.finish()
    [made] = (tmp_path / "run" / "checkpoints").iterdir()
    size_bytes = sum(file.stat().st_size for file in made.iterdir())
    assert size_bytes - 10_000 <= looked_for[0] <= 1.3 * size_bytes


def test_a_score_that_cannot_be_had_leaves_checkpoint_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_on(tmp_path / "run")
    list(run.events())

    def fail() -> None:
        raise DataError("a held-out row must be whole, it is not")

    monkeypatch.setattr(run.runtime, "evaluate", fail)
    assert run.finish()["eval"] is None
    assert isinstance(run.failure, DataError)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 12
    assert events(tmp_path / "run")[-2:] == ["checkpoint", "failed"]


NAMELESS = """
from adaptive_rec.policy import Policy

class Nameless(Policy):
    pass

class Forgetful(Policy):
    name = "forgetful"
    def state(self):
        return {"kept": self.never_set}
"""


@pytest.fixture
def own_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "policies_of_my_own.py").write_text(NAMELESS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies_of_my_own", raising=False)
    return "policies_of_my_own"


def test_a_policy_without_a_name_is_refused_before_training(own_policies: str) -> None:
    with pytest.raises(ConfigError, match=r"must name a class with a `name`.*policies_of_my_own:Nameless has none"):
        load_policy(f"{own_policies}:Nameless")


def test_a_policy_whose_state_cannot_be_saved_costs_the_checkpoint_only(tmp_path: Path, own_policies: str) -> None:
    run = run_on(tmp_path / "run", f"knobs.policy={own_policies}:Forgetful", "checkpoint.every_steps=4")
    assert "checkpoint_failed" in [getattr(report, "kind", "") for report in run.events()]
    assert run.finish()["eval"]["samples"] == 16
    assert "AttributeError: 'Forgetful' object has no attribute 'never_set'" in str(run.failure)


def test_an_empty_held_out_range_is_refused_before_training(tmp_path: Path) -> None:
    row = "\t".join(["1", *["1"] * 13, "0a", "0b"])
    (tmp_path / "clicks.tsv").write_text(f"{row}\n" * 4)
    with pytest.raises(DataError, match=r"data.test_range must hold at least one sample.*clicks.tsv holds none"):
        run_on(tmp_path / "run", f"data.source={tmp_path / 'clicks.tsv'}")
    assert not (tmp_path / "run").exists()


def test_the_journal_is_on_the_disk_before_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    commit = writing.Draft.commit

    def sync(paths: list[Path]) -> None:
        synced.extend(path.read_text() for path in paths)

    def committed(draft: Any, *arguments: Any) -> Path:
        assert f"checkpoint {draft.name} started" in synced[-1]
        return commit(draft, *arguments)

    monkeypatch.setattr(writing, "sync_files", sync)
    monkeypatch.setattr(writing.Draft, "commit", committed)
    run = run_on(tmp_path / "run", "checkpoint.every_steps=5")
    list(run.events())
    run.finish()
    assert len(synced) == 3
    assert events(tmp_path / "run").count("checkpoint") == 3


def test_a_journal_that_cannot_be_synced_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(paths: list[Path]) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(writing, "sync_files", fail)
    run = run_on(tmp_path / "run")
    list(run.events())
    run.finish()
    assert run.failure is None
    assert "a loss of power may take the end of events.jsonl: Input/output error" in run.log.last_words[0].text
    assert training_run.read_summary(tmp_path / "run" / "summary.json", 12)


def test_a_schema_that_cannot_be_written_leaves_nothing_behind(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("\n".join(["user,label", *(f"{n % 7},{n % 2}" for n in range(400))]) + "\n")
    fill(small_disk)
    words = ["--label", "label", "--out", str(small_disk / "folder")]
    assert main(["data", "prepare", str(tmp_path / "rows.csv"), *words]) == 2
    assert "folder.schema.toml cannot be written: No space left on device" in capsys.readouterr().err
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_new_folder_that_a_full_disk_cannot_hold_is_named_and_gone(small_disk: Path) -> None:
    def write() -> None:
        with new_folder(small_disk / "model") as draft:
            draft.mkdir()
            (draft / "model.json").write_bytes(bytes(5 * MIB))

    with pytest.raises(CheckpointError, match=r"disk/model cannot be written: No space left on device"):
        write()  # as where a table finds no room: `export` has one exit code for both
    assert list(small_disk.iterdir()) == []
