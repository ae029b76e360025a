"""A run that went on with other settings: its journal says so, and it is not replayed with them from the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import DataError
from adaptive_rec.run.changed_settings import changed_settings

TINY = ["train", "tiny", "--no-serve", "--set", "checkpoint.every_steps=10"]


def started(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "started"]


def test_a_run_that_was_resumed_with_another_rate_is_not_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again = tmp_path / "run", ["train", "--replay", str(tmp_path / "run"), "--no-serve", "--out"]
    resume = ["train", "--resume", "--no-serve", "--out", str(run)]
    assert main([*TINY, "--steps", "20", "--out", str(run)]) == 0
    assert main([*resume, "--steps", "30"]) == 0
    assert main([*again, str(tmp_path / "same")]) == 0, "more steps are no other course"
    assert main([*resume, "--steps", "40", "--set", "optimizer.embedding_lr=0.3"]) == 0
    assert [event["details"].get("settings") for event in started(run)[:2]] == [None, None]
    changed = started(run)[2]["details"]["settings"]
    assert changed.keys() == {"optimizer.embedding_lr"}
    assert changed["optimizer.embedding_lr"]["new"] == 0.3
    capsys.readouterr()
    assert main([*again, str(tmp_path / "other")]) == DataError.exit_code
    assert (
        f"went on at step 30 with other settings (optimizer.embedding_lr {changed['optimizer.embedding_lr']['old']}"
        in (text := capsys.readouterr().err)
    ), text
    assert not (tmp_path / "other").exists()
    journal = run / "events.jsonl"  # a kill before the run has started
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    at = next(number for number, line in enumerate(lines) if line["kind"] == "settings")
    assert lines[at]["details"]["settings"] == changed
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines[: at + 1]))
    assert main([*again, str(tmp_path / "other")]) == DataError.exit_code


def test_a_branch_with_another_batch_size_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    assert main([*TINY, "--steps", "20", "--out", str(run)]) == 0
    words = ["branch", str(run), "--at", "10", "--set", "run.batch_size=16", "--no-serve", "--out", str(branch)]
    assert main(words) == 0
    assert started(branch)[-1]["details"]["settings"]["run.batch_size"]["new"] == 16
    assert (
        main(["train", "--replay", str(branch), "--no-serve", "--out", str(tmp_path / "again")]) == DataError.exit_code
    )
    assert "with other settings (run.batch_size" in capsys.readouterr().err
    assert main(["train", "--replay", str(run), "--no-serve", "--out", str(tmp_path / "again")]) == 0


def test_a_stream_that_ends_elsewhere_as_its_last_window_is_another_is_not_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    windows = ["--set=eval.mode=next_window", "--set=eval.every_steps=15", "--set=data.shuffle=false"]
    data = ["--set=data.synthetic.samples=2000", "--set=data.synthetic.test_samples=512", "--steps=0"]
    assert main([*TINY, *data, *windows, "--out", str(run)]) == 0
    assert main(["branch", str(run), "--no-serve", "--set=eval.every_steps=2", "--out", str(branch)]) == 0
    capsys.readouterr()
    assert main(["train", "--replay", str(branch), "--no-serve", "--out", str(tmp_path / "again")]) == DataError.exit_code
    assert "with other settings (eval.every_steps 15 -> 2): it cannot be replayed" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "value"), [("transport", "bf16"), ("whole_tables", False)])
def test_how_rows_are_shared_and_travel_is_part_of_the_course(key: str, value: object) -> None:
    before = load_config("tiny", {})
    after = before.model_copy(update={"run": before.run.model_copy(update={key: value})})
    assert changed_settings(before, before, 0) == {}
    assert changed_settings(before, after, 0) == {f"run.{key}": {"old": getattr(before.run, key), "new": value}}
