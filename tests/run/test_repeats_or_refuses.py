"""A replay repeats a run or is refused, and a dry run refuses what the start refuses, with no folder left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests.finished_runs import FOLLOWED, FinishedRun, settings


def test_a_followed_run_that_went_on_within_a_batch_is_not_replayed(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("followed")
    with (tmp_path / FOLLOWED).open("a") as file:
        file.writelines(f"{n % 2},item {n},{n}\n" for n in range(100))
    assert main(["train", "--resume", "--no-serve", f"--out={run}"]) == 0
    capsys.readouterr()
    assert main(["train", "--replay", str(run), "--no-serve", f"--out={tmp_path / 'again'}"]) == 3
    assert "ended within a batch and went on at step 21: it cannot be replayed" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_a_followed_run_that_came_to_an_end_once_is_replayed(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again = finished_run("followed"), tmp_path / "again"
    assert main(["train", "--replay", str(run), "--no-serve", f"--out={again}"]) == 0
    assert main(["checkpoint", "diff", str(run), str(again)]) == 0


def test_a_stream_that_was_arranged_for_other_steps_is_not_replayed(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("arranged")
    assert main(["train", "--resume", "--no-serve", f"--out={run}", "--set=data.epochs=3"]) == 0
    capsys.readouterr()
    assert main(["train", "--replay", str(run), "--no-serve", f"--out={tmp_path / 'again'}"]) == 3
    assert "went on at step" in (said := capsys.readouterr().err)
    assert "data.epochs 2 -> 3" in said


def test_a_branch_with_another_knob_and_no_step_left_is_replayed(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, branch, again = finished_run("plain"), tmp_path / "branch", tmp_path / "again"
    assert main(["branch", str(run), "--no-serve", "--set=knobs.alpha=0.125", f"--out={branch}"]) == 0
    assert main(["train", "--replay", str(branch), "--no-serve", f"--out={again}"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(branch), str(again)]) == 0, capsys.readouterr().out


EVALUATED = {
    "validation": ["eval.every_steps=15", "eval.patience=9", "--steps=40", "--steps=50"],
    "next_window": ["eval.count=3", "data.shuffle=false", "--steps=40", "--steps=60"],
}


@pytest.mark.parametrize("mode", EVALUATED)
def test_the_replay_of_a_branch_with_more_steps_is_evaluated_after_the_same_steps(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slice is also scored at the parent's end, and `eval.count` spreads evaluations over the steps there are."""
    *sets, steps, more = EVALUATED[mode]
    run, branch, again = (tmp_path / name for name in ("run", "branch", "again"))
    words = [f"--set={each}" for each in (*settings("plain"), f"eval.mode={mode}", *sets)]
    assert main(["train", "tiny", "--no-serve", f"--out={run}", *words, steps]) == 0
    assert main(["branch", str(run), "--no-serve", f"--out={branch}", more]) == 0
    assert main(["train", "--replay", str(branch), "--no-serve", f"--out={again}"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(branch), str(again)]) == 0, capsys.readouterr().out
    found = [evaluations(each) for each in (branch, again)]
    assert found[0] == found[1]
    assert len(found[0]) > 3


def evaluations(run: Path) -> list[tuple[int, str]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [(line["step"], line["text"]) for line in lines if line["kind"] == "evaluation"]


PAUSES = "--set=watch.rules=['loss > 0: pause']"


def test_a_rule_that_pauses_does_nothing_in_a_replay(finished_run: FinishedRun, tmp_path: Path) -> None:
    run = finished_run("plain")
    words = ["train", "--replay", str(run), "--no-serve", PAUSES]
    assert main([*words, "--dry-run"]) == 0
    assert main([*words, f"--out={tmp_path / 'again'}"]) == 0
    assert main(["train", "--resume", "--no-serve", f"--out={tmp_path / 'again'}", "--steps=42"]) == 0
    assert main(["train", "--resume", "--no-serve", f"--out={run}", PAUSES, "--steps=42", "--dry-run"]) == 0


@pytest.mark.parametrize(
    "settings",
    [
        ["knobs.policy=device_only", "run.host_memory=16KiB"],
        ["knobs.policy=fae", "watch.rules=['loss is nan: rollback skipping data']"],
        ["watch.rules=['loss > 3: rollback with policy=fae']"],
        ["watch.rules=['loss > 3: rollback with admit_after=2']"],
        ["run.host_memory=9KiB", "knobs.hot_budget_bytes=4KiB", "watch.rules=['loss > 3: rollback with hot_budget_bytes=65536']"],
        ["run.precision=tf32"],
        ["data.ids=raw", "knobs.policy=fae", "knobs.evict_after=9"],
        ["data.ids=raw", "knobs.policy=fae", "watch.rules=['loss > 3: rollback with admit_after=2']"],
        ["eval.mode=next_window", "eval.every_steps=5", "data.shuffle=false", "knobs.policy=fae"],
    ],
    ids=lambda settings: settings[-1],
)
def test_a_dry_run_refuses_what_the_start_refuses(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tiny", "--no-serve", f"--out={tmp_path / 'run'}", *(f"--set={each}" for each in settings)]
    said = []
    for more in (["--dry-run"], []):
        assert main([*words, *more]) == 2
        said += [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert list(tmp_path.iterdir()) == []
    assert said[0] == said[1]


def test_a_resume_that_cannot_go_on_is_refused_by_its_dry_run(
    finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("plain")
    for word, rule in (("--steps=10", "run.steps must be at least the 40 steps"), ("--seed=9", "must be 1, got 9")):
        for more in (["--dry-run"], []):
            assert main(["train", "--resume", "--no-serve", f"--out={run}", word, *more]) != 0
            assert rule in capsys.readouterr().err
