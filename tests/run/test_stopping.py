"""A run that stops early on its validation slice keeps the best checkpoint, bit by bit after kills, in a replay, in several
processes, in branches and after rollbacks."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in, newest_of_step
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.errors import ConflictError, UsageError
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.offline.report.record import read_run
from adaptive_rec.offline.report.run_report import run_page
from adaptive_rec.run import best_model
from adaptive_rec.run.branching import make_branch
from adaptive_rec.run.chosen_checkpoint import chosen_checkpoint
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.resume import evaluate_run
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.service.run_view import choice_at_the_end
from adaptive_rec.system.group import Alone, Group
from tests.checkpoint.contents import contents, newest_contents
from tests.doubles.late_threads import LateThreads

OVERFITS = [
    "run.device=cpu", "run.threads=1", "run.steps=0", "run.batch_size=64", "data.synthetic.samples=1500",
    "data.synthetic.test_samples=300", "data.epochs=12", "optimizer.embedding_lr=0.3", "optimizer.dense_lr=0.1",
    "eval.mode=validation", "eval.validation_ratio=0.2", "eval.per_epoch=2", "eval.patience=3", "knobs.report_every=5",
    "knobs.reclassify_every=7", "checkpoint.every_seconds=0", "checkpoint.every_steps=11",
]  # fmt: skip
"""A run whose validation loss grows after the first of twelve passes."""
BEST, END = 19, 48


def trained(
    out: Path, *changes: str, resume: bool = False, replay: Path | None = None, lost_at: int = 0, ranks: int = 1,
    steered: Callable[[TrainingRun, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train as the command line does. `lost_at`: the step after which the run is lost, its directory left as it is. `steered` is
    called with each reported step. Returns the summary."""

    def of_rank(group: Group) -> dict[str, Any] | None:
        kept = str(out / "config.toml") if resume else "tiny"
        config = load_config(kept, {}, [*([] if resume else OVERFITS), *changes])
        if group.rank:
            Follower(config, out, resume, (), group).train()
            return None
        run = TrainingRun(config, out, resume=resume, replay=replay, group=group)
        run.runtime.state.pause_as_saved(reachable=group.tell(False))
        for report in run.events():
            if lost_at and run.runtime.step_number >= lost_at:
                run._directory.close()
                return {}
            if steered is not None and isinstance(report, Snapshot) and report.step == run.runtime.step_number:
                steered(run, report.step)
        return run.finish()

    found = LateThreads.train(ranks, of_rank) if ranks > 1 else [of_rank(Alone())]
    assert found[0] is not None
    return found[0]


def outcome(out: Path) -> dict[str, Any]:
    """All that a run has come to: its evaluations, which one was the best, the score of its end, the last and the best model."""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["eval"] is not None
    names = ("steps", "eval", "eval_step", "best_eval", "best_metric", "stopped_early", "samples_seen", "row_updates")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "processor_seconds")
    scores = {each["step"]: {k: v for k, v in each.items() if k not in clocks} for each in lines if each["event"] == "evaluation"}
    with chosen_checkpoint(out, "best") as chosen:
        best = contents(chosen.generation)
    best["state"] = {name: best["state"][name] for name in ("step", "position")}  # others may be saved before windows end
    return {"summary": {name: summary[name] for name in names}, "scores": scores, "last": newest_contents(out), "best": best}


def assert_same(one: Path, other: Path, last: bool = True) -> None:
    mine, theirs = outcome(one), outcome(other)
    for part in ("summary", "scores", "best", *(["last"] if last else [])):
        assert mine[part].keys() == theirs[part].keys()
        assert {name for name in mine[part] if mine[part][name] != theirs[part][name]} == set(), part


def steps_in(out: Path) -> list[int]:
    return [int(name[5:14]) for name in generations(names_in(DISK, out / "checkpoints"))]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    summary = trained(out)
    assert (summary["eval_step"], summary["steps"], summary["steps_total"]) == (BEST, END, END)
    return out


def test_a_run_stops_and_scores_the_held_out_samples_by_its_best_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    test_batches = SyntheticSource.test_batches

    def noted(self: SyntheticSource, batch_size: int, most: int = 0, validation: bool = False) -> Any:
        read.append(validation)
        return test_batches(self, batch_size, most, validation)

    monkeypatch.setattr(SyntheticSource, "test_batches", noted)
    out = tmp_path / "run"
    summary = trained(out)
    assert read == [True] * 5 + [False], "the held-out range is read once, at the end"
    why = "stopped early: 3 evaluations in a row without a better logloss; the best was 0.60"
    assert summary["stopped_early"].startswith(why)
    assert summary["stopped_early"].endswith("at step 19 (pass 1 of at most 12)")
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert [kinds.count(kind) for kind in ("stopped_early", "scored", "finished")] == [1, 1, 1]
    scored = next(line for line in lines if line["kind"] == "scored")["details"]
    assert (scored["model_step"], scored["logloss"]) == (BEST, summary["eval"]["logloss"])

    for wanted, step in ((None, BEST), ("newest", END), (f"step-{BEST:09}", BEST)):
        found, chosen = evaluate_run(out, wanted=wanted)
        assert (found.step, f"step-{step:09}") == (step, chosen.generation.name)
        assert (json.loads(json.dumps(found.quality.as_dict())) == summary["eval"]) == (step == BEST)
    with pytest.raises(UsageError, match="--checkpoint must be best, newest, or the step or the name .* got 18"):
        evaluate_run(out, wanted="18")
    board = choice_at_the_end(out)
    assert (board["held_out"]["step"], board["held_out"]["auc"]) == (BEST, summary["eval"]["auc"])
    assert (board["best_evaluation"]["step"], board["best_metric"]) == (BEST, "logloss")
    page = run_page(read_run(out))
    assert f"{summary['eval']['logloss']:.4f}" in page
    assert "stopped early: 3 evaluations in a row" in page


KINDS: dict[str, list[str]] = {
    "plain": [],
    "raw": ["data.ids=raw", "data.shared_rows=3", "knobs.admit_after=2", "knobs.evict_ratio=0.2", "knobs.evict_after=9"],
    "disk": ["run.host_memory=1MiB", "knobs.hot_budget_bytes=16KiB"],
    "16 bits": ["run.precision=bf16", "run.row_precision=bf16"],
    "slipstream": ["knobs.policy=slipstream", "knobs.stale_metric=max_abs", "knobs.action=drop"],
    "released": ["knobs.policy=slipstream_released"],
    "fae": ["knobs.policy=fae"],
    "cdlrm": ["knobs.policy=cdlrm"],
    "auc": ["eval.metric=auc", "eval.min_delta=0.001", "eval.patience=4"],
    "every": ["eval.per_epoch=0", "eval.every_steps=8", "checkpoint.every_steps=8"],
    "no others": ["checkpoint.every_steps=0"],
}


def lost_and_resumed(whole: Path, cut: Path, at: Sequence[int], *changes: str) -> None:
    """Check that a run that is lost after some steps, resumed each time, ends as one that is not."""
    for number, step in enumerate(at):
        trained(cut, *([] if number else changes), resume=bool(number), lost_at=step)
    trained(cut, resume=True)
    assert_same(whole, cut)


def test_a_run_that_was_lost_ends_as_the_uninterrupted_one(tmp_path: Path, straight: Path) -> None:
    lost_and_resumed(straight, tmp_path / "cut", [20])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_kind_that_were_lost_end_as_the_uninterrupted_ones(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole"
    end = trained(whole, *KINDS[kind])
    assert end["stopped_early"], "otherwise the test shows nothing"
    best = end["best_eval"]["step"]
    assert 0 < best < end["steps"]
    for turn, at in enumerate(([best - 1, end["steps"] - 1], [best, best + 1, best + 9], [end["steps"]])):
        lost_and_resumed(whole, tmp_path / f"cut-{turn}", [step for step in at if step > 0], *KINDS[kind])
    trained(tmp_path / "again", *KINDS[kind], replay=whole)
    assert_same(whole, tmp_path / "again")


@pytest.mark.slow
def test_a_replay_with_an_interval_that_a_client_changed_stops_at_the_same_step(tmp_path: Path) -> None:
    def more_often(run: TrainingRun, step: int) -> None:
        if step == 20:
            run.runtime.mailbox.change_knobs(eval_every_steps=4)

    whole = trained(tmp_path / "whole", steered=more_often)
    trained(tmp_path / "again", replay=tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "again")
    assert BEST < whole["steps"] < END


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "raw", "disk", "slipstream"])
def test_two_ranks_stop_at_the_step_of_one_and_a_resume_of_theirs_too(tmp_path: Path, straight: Path, kind: str) -> None:
    changes = ["run.precision=float64", *KINDS[kind]]
    one, two = trained(tmp_path / "one", *changes), trained(tmp_path / "two", *changes, ranks=2)
    assert (two["steps"], two["eval_step"]) == (one["steps"], one["eval_step"])
    assert two["best_eval"]["value"] == pytest.approx(one["best_eval"]["value"], rel=1e-10)
    assert two["eval"]["logloss"] == pytest.approx(one["eval"]["logloss"], rel=1e-10)

    def signal(run: TrainingRun, step: int) -> None:
        if step == 25:
            run.runtime.hurry()

    stopped = trained(tmp_path / "cut", *changes, ranks=2, steered=signal)
    assert (stopped["steps"], stopped["eval"], stopped["stopped_early"]) == (26, None, None)
    trained(tmp_path / "cut", resume=True, ranks=2)
    assert_same(tmp_path / "two", tmp_path / "cut")
    assert evaluate_run(tmp_path / "two")[0].quality.logloss == pytest.approx(two["eval"]["logloss"], rel=1e-10)


@pytest.mark.slow
def test_more_patience_goes_on_and_the_same_has_nothing_left_to_do(tmp_path: Path, straight: Path) -> None:
    out = shutil.copytree(straight, tmp_path / "run")
    before = (out / "summary.json").read_text()
    assert trained(out, resume=True)["steps"] == END
    assert (out / "summary.json").read_text() == before
    went_on = trained(out, "eval.patience=5", resume=True)
    assert went_on["steps"] > END
    trained(tmp_path / "whole", "eval.patience=5")
    assert_same(tmp_path / "whole", out, last=False)


@pytest.mark.slow
def test_the_best_checkpoint_is_never_pruned_and_each_kept_one_has_its_best(tmp_path: Path, straight: Path) -> None:
    assert BEST in steps_in(straight)
    out = tmp_path / "run"
    many = trained(out, "eval.patience=9", "checkpoint.every_steps=3")
    assert many["steps"] > END
    assert many["eval_step"] in steps_in(out)

    def back(run: TrainingRun, step: int) -> None:
        if step == 20 and not run.runtime.state.rollbacks:
            run.runtime.mailbox.send(roll_back_to(12))

    trained(tmp_path / "back", steered=back)
    assert_same(straight, tmp_path / "back", last=False)


def roll_back_to(step: int) -> Any:
    from adaptive_rec.live.mailbox import Command

    return Command("rollback", {"checkpoint": None, "to_step": step, "skip_data": False, "knobs": {}})


@pytest.mark.slow
def test_a_branch_takes_the_best_checkpoint_along(tmp_path: Path, straight: Path) -> None:
    branch = make_branch(straight, str(END), tmp_path / "branch", {}, ["eval.patience=5"], "branch")
    assert {BEST, END} <= set(steps_in(branch.out))
    trained(branch.out, resume=True)
    trained(tmp_path / "whole", "eval.patience=5")
    assert_same(tmp_path / "whole", branch.out, last=False)


def test_a_best_checkpoint_that_is_gone_is_said(tmp_path: Path, straight: Path) -> None:
    out = shutil.copytree(straight, tmp_path / "run")
    for name in newest_of_step(generations(names_in(DISK, out / "checkpoints")), BEST):
        shutil.rmtree(out / "checkpoints" / name)
    said: list[str] = []
    assert evaluate_run(out, said.append)[0].step == END
    [text] = said
    assert text.endswith("was at step 19, of which there is no checkpoint: the newest one is read")
    with pytest.raises(UsageError, match="--checkpoint must be newest or a step, got best: the best evaluation"):
        evaluate_run(out, wanted="best")


@pytest.mark.slow
def test_a_run_without_patience_chooses_the_best_and_trains_all_passes(tmp_path: Path) -> None:
    summary = trained(tmp_path / "run", "eval.patience=0", "data.epochs=3")
    assert (summary["steps"], summary["stopped_early"], summary["eval_step"]) == (57, None, BEST)
    last = trained(tmp_path / "few", "eval.patience=0", "run.steps=15", "eval.per_epoch=0")
    assert last["eval_step"] == last["best_eval"]["step"] == 15, "the end is evaluated where nothing else is said"


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_tables_of_the_last_model_are_freed_before_those_of_the_best_are_made(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    out = tmp_path / "run"
    if resumed:
        trained(out, lost_at=30)
    kept = load_config(str(out / "config.toml"), {}) if resumed else load_config("tiny", {}, OVERFITS)
    run = TrainingRun(kept, out, resume=resumed)
    list(run.events())
    store, assembled = weakref.ref(run.runtime.store), best_model.assemble

    def watched(*args: Any, **options: Any) -> Any:
        assert store() is None
        return assembled(*args, **options)

    monkeypatch.setattr(best_model, "assemble", watched)
    assert run.finish()["eval_step"] == BEST
    assert run.present.state.phase == "finished"
    with pytest.raises(ConflictError, match="the run has ended"):
        run.present.find_keys(0, [1])


@pytest.mark.slow
def test_another_metric_after_a_resume_is_in_the_journal_and_more_patience_is_not(tmp_path: Path, straight: Path) -> None:
    def told(name: str, *changes: str) -> list[str]:
        out = shutil.copytree(straight, tmp_path / name)
        trained(out, *changes, resume=True)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        return [key for event in events if event["kind"] == "settings" for key in event["details"]["settings"]]

    assert told("more", "eval.patience=5") == []
    assert told("other", "eval.patience=5", "eval.metric=auc", "data.epochs=3") == ["eval.metric"]


@pytest.mark.slow
def test_a_window_is_as_good_as_a_slice_for_patience(tmp_path: Path) -> None:
    windows = ["eval.mode=next_window", "eval.per_epoch=0", "eval.every_steps=4", "data.shuffle=false", "data.epochs=1"]
    windows += ["eval.patience=1", "optimizer.embedding_lr=3.0"]
    whole = trained(tmp_path / "whole", *windows)
    assert whole["stopped_early"]
    lost_and_resumed(tmp_path / "whole", tmp_path / "cut", [5, whole["steps"] - 1], *windows)


@pytest.mark.slow
def test_data_that_is_followed_is_trained_on_until_its_windows_get_no_better(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    rows = [f"{label},u{dice.integers(30)},{dice.integers(9)}" for label in dice.integers(0, 2, 4000)]
    (tmp_path / "rows.csv").write_text("\n".join(["label,user,number", *rows]) + "\n")
    (tmp_path / "schema.toml").write_text('label = "label"\nsparse = ["user", "number"]\n')
    follows = [
        f"data.source={tmp_path / 'rows.csv'}", f"data.schema_file={tmp_path / 'schema.toml'}", "data.ids=raw",
        "data.follow=true", "data.follow_idle_seconds=20", "data.epochs=1", "eval.patience=1", "eval.mode=held_out",
        "eval.per_epoch=0", "eval.every_steps=5", "data.max_table_rows=100", "optimizer.embedding_lr=1.0",
    ]  # fmt: skip
    whole = trained(tmp_path / "whole", *follows)
    assert whole["stopped_early"], "long before the data ends"
    assert whole["steps"] < 60
    lost_and_resumed(tmp_path / "whole", tmp_path / "cut", [7, whole["steps"] - 1], *follows)
    assert trained(tmp_path / "cut", resume=True)["steps"] == whole["steps"]


@pytest.mark.slow
def test_a_rule_that_pauses_and_a_run_that_nobody_can_reach_go_on_to_the_same_end(tmp_path: Path, straight: Path) -> None:
    out = tmp_path / "run"
    trained(out, 'watch.rules=["logloss > 0.65: pause"]')
    assert json.loads((out / "events.jsonl").read_text().splitlines()[-1])["kind"] == "suspended"
    while json.loads((out / "events.jsonl").read_text().splitlines()[-1])["kind"] == "suspended":
        trained(out, resume=True)
    assert_same(straight, out, last=False)
