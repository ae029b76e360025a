"""Runs of a comparison: made once, under equal conditions; failures stay alone; what was interrupted goes on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.errors import UsageError
from adaptive_rec.offline.compare import processes
from adaptive_rec.offline.compare.plan import Turn, Variant, conditions, plan_of, settle_conditions
from adaptive_rec.offline.compare.processes import ProcessEnd, RunProgress, finished
from tests.offline.compare.conftest import QUICK

OPTIONS = [part for setting in QUICK for part in ("--set", setting)]

# Plan ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config() -> Config:
    return load_config("tiny", {}, QUICK)


def test_seeds_come_one_after_the_other_and_each_policy_begins_one(config: Config) -> None:
    plan = plan_of(config, ["hotline", "hybrid", "adaptive"], 3, "hybrid")
    assert plan.policies == ("hybrid", "hotline", "adaptive")
    turns = plan.turns()
    assert [turn.seed for turn in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {turns[0].policy, turns[3].policy, turns[6].policy} == set(plan.policies)
    for at in range(3):  # each policy once at each place
        assert {turns[3 * seed + at].policy for seed in range(3)} == set(plan.policies)


@pytest.mark.parametrize(
    ("policies", "seeds", "said"),
    [
        (["hybrid"], 3, "at least one policy besides the baseline hybrid"),
        (["hotline", "hotline"], 3, "each policy once, got hotline twice"),
        (["hotline", " "], 3, "must be names"),
        (["hotline"], 0, "--seeds must be at least 1, got 0"),
        (["a:B", "a.B"], 3, "differ in more than a colon"),
    ],
)
def test_plans_that_make_no_sense_are_refused(config: Config, policies: list[str], seeds: int, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        plan_of(config, policies, seeds, "hybrid")


def test_evaluations_are_made_during_a_run_unless_configured_otherwise(config: Config) -> None:
    assert plan_of(config, ["hotline"], 1, "hybrid").config.eval.interval(Knobs(), 4000) == 400
    told_ = config.model_copy(update={"eval": config.eval.model_copy(update={"every_steps": 7})})
    assert plan_of(told_, ["hotline"], 1, "hybrid").config.eval.interval(Knobs(), 4000) == 7


def test_other_conditions_are_refused_and_named(config: Config, tmp_path: Path) -> None:
    held = conditions(config)
    settle_conditions(tmp_path, held)
    settle_conditions(
        tmp_path, conditions(config.model_copy(update={"run": config.run.model_copy(update={"seed": 5})}))
    )
    knobs = config.knobs.model_copy(update={"hot_budget_bytes": 4096})
    with pytest.raises(UsageError, match=r"knobs.hot_budget_bytes was 24576 and is 4096; give another --out"):
        settle_conditions(tmp_path, conditions(config.model_copy(update={"knobs": knobs})))
    with pytest.raises(UsageError, match="version of adaptive-rec was"):
        settle_conditions(tmp_path, {**held, "version of adaptive-rec": "0.0"})


def test_runs_of_a_policy_never_pass_for_those_of_a_variant_or_the_reverse(config: Config, tmp_path: Path) -> None:
    held, named = conditions(config), (Variant("own.Policy", "hybrid", ("run.steps=20",)),)
    settle_conditions(tmp_path, held, named, ["hybrid", "own.Policy"])
    settle_conditions(tmp_path, held, named, ["hybrid", "own.Policy"])
    with pytest.raises(UsageError, match=r"--policies must have other names than the variants in .*, got own:Policy"):
        settle_conditions(tmp_path, held, (), ["hybrid", "own:Policy"])
    (tmp_path / "runs" / "other.Policy-seed1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"--variant must have another name than the policies in .*, got other.Policy"):
        settle_conditions(tmp_path, held, (Variant("other.Policy", "hybrid", ("run.steps=20",)),), ["hybrid"])


# Runs ------------------------------------------------------------------------------------------------------------------


class StandIn:
    """A `WarmProcess` that leaves a run's directory as `train` would, from one real run, and counts its calls."""

    def __init__(self, source: Path) -> None:
        self.source, self.calls = source, list[list[str]]()
        self.fail: dict[str, int] = {}
        self.stop_at = ""
        self.killed = 0
        self.compiles_first = False

    def __call__(self, lock: Any) -> StandIn:
        return self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.killed += kind is not None

    def run(self, words: list[str], log: Path, look: Any) -> int:
        import shutil

        out = Path(next(word for word in words if word.startswith("--out=")).removeprefix("--out="))
        self.calls.append(words)
        if out.name == self.stop_at:  # somebody presses Ctrl-C
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        code = next((code for name, code in self.fail.items() if out.name == name), 0)
        if code:
            log.write_bytes(b"Traceback\nValueError: planted\n")
        else:
            shutil.copytree(self.source, out)
            if self.compiles_first and len(self.calls) == 1:
                log.write_bytes(f"{processes.COMPILING} ...\n".encode())
        return code


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with evaluations along the way."""
    from adaptive_rec.run.training_run import TrainingRun

    out = tmp_path_factory.mktemp("compare") / "run"
    run = TrainingRun(load_config("tiny", {}, [*QUICK, "eval.count=4"]), out)
    for _ in run.events():
        pass
    run.finish()
    return out


@pytest.fixture
def stand_in(a_run: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(a_run)
    monkeypatch.setattr(processes, "WarmProcess", made)
    return made


def comparison(out: Path, *words: str, policies: str = "hybrid,hotline") -> int:
    return main(["compare", "tiny", "--policies", policies, "--seeds", "1", "--out", str(out), *OPTIONS, *words])


def test_evaluations_record_the_clock_of_training(a_run: Path) -> None:
    lines = [json.loads(line) for line in (a_run / "metrics.jsonl").read_text().splitlines()]
    made = [line for line in lines if line["event"] == "evaluation"]
    assert [line["step"] for line in made] == [10, 20, 30, 40]
    assert [line["samples_seen"] for line in made] == [1280, 2560, 3840, 5120]
    clock = [line["seconds"] for line in made]
    assert clock == sorted(clock)
    summary = json.loads((a_run / "summary.json").read_text())
    assert clock[-1] <= summary["seconds"]
    assert made[-1]["auc"] == summary["eval"]["auc"]
    reports = {line["step"]: line["seconds"] for line in lines if line["event"] == "snapshot"}
    for line in made:  # the report of the same step was made just before
        assert reports[line["step"]] <= line["seconds"] <= reports.get(line["step"] + 5, summary["seconds"])


def test_finished_runs_are_not_repeated_and_more_can_be_added(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one"
    assert comparison(out) == 0
    assert len(stand_in.calls) == 2
    assert comparison(out) == 0
    assert len(stand_in.calls) == 2
    assert "2 of 2 runs are done" in capsys.readouterr().out
    assert comparison(out, policies="hybrid,adaptive,hotline") == 0
    assert [Turn("adaptive", 1).name in " ".join(words) for words in stand_in.calls] == [False, False, True]
    assert comparison(out, "--seeds", "2") == 0
    assert len(stand_in.calls) == 5
    assert comparison(out, "--budget", "4KiB") == 2
    assert "knobs.hot_budget_bytes was 24576 and is 4096" in capsys.readouterr().err
    assert not (out / "runs" / "hybrid-seed1" / "checkpoints").exists()


def test_variants_are_compared_as_policies_are(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one"
    fewer = ("--variant", "fewer: run.steps=20, model.top_mlp=[8, 4], optimizer.dense_lr=0.02")
    more = ("--variant", "more: knobs.policy=slipstream, knobs.target_skip_ratio=0.6")
    assert comparison(out, *fewer) == 0
    own = next(words for words in stand_in.calls if any("fewer-seed" in word for word in words))
    assert own[2] == "--policy=hybrid"
    assert own[4:10] == [
        "--set", "run.steps=20", "--set", "model.top_mlp=[8, 4]", "--set", "optimizer.dense_lr=0.02"
    ]  # fmt: skip
    assert comparison(out, *fewer, *more) == 0
    assert comparison(out) == 0  # fewer of them
    assert len(stand_in.calls) == 4
    assert stand_in.calls[-1][2:6] == ["--policy=slipstream", "--seed=1", "--set", "knobs.target_skip_ratio=0.6"]
    capsys.readouterr()
    assert comparison(out, "--variant", "fewer: run.steps=30") == 2
    assert "variant fewer must be as before" in capsys.readouterr().err
    assert comparison(out, *fewer, *more) == 0
    assert "2 policies and 2 variants on synthetic" in (out / "table.md").read_text()
    assert "more: knobs.policy=slipstream, knobs.target_skip_ratio=0.6." in (out / "compare.html").read_text()


def test_a_failed_run_is_reported_and_others_are_kept(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one"
    stand_in.fail = {"hotline-seed1": 1, "adaptive-seed1": -9}
    assert comparison(out, policies="hybrid,hotline,adaptive,device_only") == 1
    told_ = json.loads((out / "compare.json").read_text())
    assert {run["policy"] for run in told_["runs"]} == {"hybrid", "device_only"}
    assert told_["failed"][0]["why"] == "exit code 1: ValueError: planted"
    assert told_["failed"][0]["last_lines"] == ["Traceback", "ValueError: planted"]
    assert told_["failed"][1]["why"].startswith("killed by SIGKILL")
    for text in ((out / "compare.html").read_text(), (out / "table.md").read_text(), capsys.readouterr().out):
        assert "ValueError: planted" in text
    stand_in.fail = {}
    assert comparison(out, policies="hybrid,hotline,adaptive,device_only") == 0
    assert len(stand_in.calls) == 6
    assert json.loads((out / "compare.json").read_text())["failed"] == []


def test_ctrl_c_ends_the_run_under_way_and_keeps_those_before(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "one"
    stand_in.stop_at = "hotline-seed1"
    handler = signal.getsignal(signal.SIGINT)
    assert comparison(out, policies="hybrid,hotline,adaptive") == 130
    assert stand_in.killed == 1
    assert signal.getsignal(signal.SIGINT) is handler
    printed = capsys.readouterr()
    assert "stopped with 2 of 3 runs to go; adaptive-rec compare tiny" in printed.err
    assert [run["policy"] for run in json.loads((out / "compare.json").read_text())["runs"]] == ["hybrid"]
    assert "hybrid" in printed.out  # what is there is shown
    stand_in.stop_at = ""
    assert comparison(out, policies="hybrid,hotline,adaptive") == 0
    assert ["hybrid-seed1" in " ".join(words) for words in stand_in.calls] == [True, False, False, False]
    assert len(json.loads((out / "compare.json").read_text())["runs"]) == 3


def test_a_run_that_compiled_kernels_is_repeated(tmp_path: Path, stand_in: StandIn) -> None:
    stand_in.compiles_first = True
    assert comparison(tmp_path / "one") == 0
    assert ["hybrid-seed1" in words[-2] for words in stand_in.calls] == [True, True, False]
    outcome = processes.read_outcome(tmp_path / "one" / "runs" / "hybrid-seed1")
    assert outcome is not None
    assert not outcome.compiled


def test_runs_take_settings_from_the_file_alone(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTIVE_REC_KNOBS__ALPHA", "0.5")
    assert comparison(tmp_path / "one") == 0
    assert load_config(str(tmp_path / "one" / "settings.toml"), {}).knobs.alpha == 0.5
    assert "ADAPTIVE_REC_KNOBS__ALPHA" not in processes.environment()
    assert all("--no-serve" in words for words in stand_in.calls)


def test_a_run_with_a_damaged_or_foreign_outcome_is_repeated(tmp_path: Path, a_run: Path) -> None:
    import shutil
    from dataclasses import asdict

    run = tmp_path / "run"
    shutil.copytree(a_run, run)
    good = ProcessEnd(0, "c", "s", 0.0, 1.0)
    (run / processes.OUTCOME).write_text(json.dumps(asdict(good)))
    assert finished(run, "c") == good
    assert finished(run, "another") is None
    (run / processes.OUTCOME).write_text(json.dumps(asdict(good))[:20])
    assert finished(run, "c") is None
    (run / processes.OUTCOME).write_text(json.dumps(asdict(good)))
    (run / "summary.json").unlink()
    assert finished(run, "c") is None


def test_two_comparisons_do_not_work_in_one_directory(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert comparison(tmp_path / "one") == 0
    with open(tmp_path / "one" / processes.LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert comparison(tmp_path / "one", "--seeds", "2") == 2
    assert "another one does" in capsys.readouterr().err
    assert len(stand_in.calls) == 2


def test_a_directory_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert comparison(tmp_path) == 2
    assert "--out must be a new directory or that of a comparison" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_damaged_conditions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "conditions.json").write_text(text)
    assert comparison(tmp_path) == 2
    assert "conditions.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "knobs.policy=hotline"], "--set must leave knobs.policy to --policies"),
        (["--policies", "hybrid,hotlin"], "did you mean hotline?"),
        (["--steps", "many"], "run.steps"),
        (["--variant", "fewer: run.step=20"], "run.step"),
        (["--variant", "run.steps=20"], "--variant must be NAME: KEY=VALUE, ..."),
        (["--variant", f"{'x' * 101}: run.steps=20"], "with a NAME of up to 100 letters"),
        (["--variant", "other: eval.count=3"], "--variant must leave eval.count as it is for all runs"),
        (["--variant", "other: knobs.eval_every_steps=5"], "--variant must leave knobs.eval_every_steps as it is for all"),
        (["--variant", "other: run={seed=9}"], "--variant must name keys as section.key, got run in 'other: run={seed=9}'"),
        (["--variant", "hotline: run.steps=20"], "--variant must have a name that no policy and no other variant has"),
        (["--variant", "adaptive: run.steps=20"], "--variant must have a name that no policy and no other variant has"),
        (["--variant", "other: knobs.policy=hotlin"], "did you mean hotline?"),
        (["--data", "nowhere.txt"], "data.source must be synthetic or a file or folder that exists, got 'nowhere.txt'"),
        (["--seed", "1"], "unknown argument --seed; did you mean --seeds?"),
    ],
)
def test_impossible_comparisons_are_refused_before_the_first_run(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert comparison(tmp_path / "one", *words) == 2
    assert said in capsys.readouterr().err
    assert not stand_in.calls


def test_standard_output_holds_only_json(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert comparison(tmp_path / "one", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "one" / "compare.json").read_text())
    assert "run 2 of 2" in printed.err


def test_progress_is_that_of_the_newest_whole_report(tmp_path: Path, a_run: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert processes.progress(metrics) is None
    metrics.write_bytes((a_run / "metrics.jsonl").read_bytes() + b'{"event": "snapshot", "step": 99')
    found = processes.progress(metrics)
    assert found is not None
    assert (found.step, found.steps) == (40, 40)


def test_the_board_shows_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from adaptive_rec.cli import compare_screen as board_module

    now = [0.0]
    monkeypatch.setattr(board_module.time, "monotonic", lambda: now[0])
    turns = [Turn("a", 1), Turn("b", 1), Turn("a", 2), Turn("b", 2)]
    with board_module.Board(turns, 2) as board:
        board.begin(turns[0])
        assert board._seconds_left(None) is None
        assert board._seconds_left(RunProgress(10, 100, 2.0, 1.0)) == pytest.approx(18 + 3 * 18)
        now[0] = 20.0
        board.end(turns[0], ProcessEnd(0, "", "", 0, 20.0), {"auc": 0.7, "seconds": 18.0, "samples_per_second": 9.0})
        board.begin(turns[1])
        assert board._seconds_left(RunProgress(10, 100, 1.0, 1.0)) == pytest.approx(9 + 20 + 20)
        now[0] = 30.0
        board.end(turns[1], ProcessEnd(-11, "", "", 0, 10.0), None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run 3 of 6   seed 1   a   18.0 s, 9 samples/s, AUC 0.7000   1:00 left"
    assert lines[1] == "run 4 of 6   seed 1   b   failed: killed by SIGSEGV   30 s left"


# The whole, once -------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def words(out: Path, policies: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "adaptive_rec", "compare", "tiny", "--seeds=1", f"--policies={policies}", f"--out={out}",
        *OPTIONS, *more,
    ]  # fmt: skip


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_an_interrupted_comparison_resumes_and_shows_the_figures_of_its_runs(tmp_path: Path) -> None:
    """Real processes: Ctrl-C in the first run, the same command again, a policy of the user's own that fails."""
    (tmp_path / "mine.py").write_text(
        "from adaptive_rec.policies.hotline import POLICY\n"
        "class Fails(POLICY):\n"
        "    def plan(self, view):\n"
        "        raise ValueError('planted in step %d' % view.step)\n"
    )
    out = tmp_path / "one"
    same = words(out, "hybrid,mine:Fails")
    pipes = {"cwd": tmp_path, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(same, **pipes)
    try:
        until(lambda: (out / "runs" / "hybrid-seed1" / "config.toml").exists() or child.poll() is not None)
    finally:
        child.send_signal(signal.SIGINT)
        said, error = child.communicate(timeout=300)
    assert child.returncode == 130, said + error
    assert "stopped with 2 of 2 runs to go; adaptive-rec compare" in error
    assert not (out / "runs" / "hybrid-seed1" / "summary.json").exists()
    done = subprocess.run(same, timeout=240, **pipes)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((out / "compare.json").read_text())
    assert [(each["policy"], each["why"]) for each in found["failed"]] == [
        ("mine:Fails", "exit code 1: ValueError: planted in step 0")
    ]
    (run,) = found["runs"]
    summary = json.loads((out / run["directory"] / "summary.json").read_text())
    assert (run["seconds"], run["auc"]) == (summary["seconds"], summary["eval"]["auc"])
    assert run["process_seconds"] > run["seconds"] + run["start_seconds"]
    assert sum(run["stages"].values()) == pytest.approx(run["seconds"], rel=1e-3)
    assert len(run["evaluations"]) == 10
