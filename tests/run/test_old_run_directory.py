"""A run directory that the code before the rooms wrote: it resumes and ends as that code ended it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adaptive_rec.cli import main

OLD_RUN = Path(__file__).parent / "run_of_format_3"
"""24 steps of slipstream on synthetic data in float64, written by 0.1.0 before its modules moved."""

EXPECTED = json.loads((Path(__file__).parent / "run_of_format_3_at_48_steps.json").read_text(encoding="utf-8"))
"""The summary of the same run when that code made 48 steps without a stop."""

SINCE = {"migrated_rows": 180, "hot_rows": 36, "hot_lookup_ratio": 0.7673611111111112}
MIGRATED_ROWS_MORE = 34
"""That code moved 94 rows, 56 of them in the first 24 steps. Popularity is counted in another kind of sketch since, and a record
of movement takes less, so more rows are hot in the same budget. Where rows are changes no loss."""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return shutil.copytree(OLD_RUN, tmp_path / "run")


def test_an_old_run_resumes_and_ends_as_the_old_code_ended_it(
    old_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", "--out", str(old_run), "--steps", "48", "--no-serve", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["resumed_at_step"] == 24
    expected = EXPECTED | SINCE
    assert {name: found[name] for name in expected if name not in ("eval", "train_logloss")} == {
        name: value for name, value in expected.items() if name not in ("eval", "train_logloss")
    }
    assert found["train_logloss"] == pytest.approx(EXPECTED["train_logloss"], rel=1e-12)
    assert found["eval"] == pytest.approx(EXPECTED["eval"], rel=1e-10)
    events = [json.loads(line) for line in (old_run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [event["text"] for event in events if event["kind"] == "warning"]
    assert [text for text in texts if "another kind of sketch" in text], texts


@pytest.mark.parametrize(
    "command", [["report"], ["eval", "--json"], ["checkpoint", "list"], ["checkpoint", "verify"]], ids=" ".join
)
def test_commands_read_an_old_run(old_run: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    name, *options = command
    words = [*command, str(old_run)] if name == "checkpoint" else [name, str(old_run), *options]
    assert main(words) == 0
    assert "24" in capsys.readouterr().out or name == "report"


def test_an_old_run_is_replayed(old_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "replayed"
    assert main(["train", "--replay", str(old_run), "--out", str(out), "--no-serve", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["steps"] == 24
    last = json.loads((old_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-2])
    assert replayed["migrated_rows"] == last["totals"]["migrated_rows"] + MIGRATED_ROWS_MORE
