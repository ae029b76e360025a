"""A run that is steered: paused, sent on, stopped, given another policy, and made again from its journal."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.errors import AdaptiveRecError, ConfigError, ConflictError, DataError, TrainingError
from adaptive_rec.live.mailbox import Command, Mailbox, Verb
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.policy import AccessView, ArrangingPolicy, Policy, Wish
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.doubles.late_streams import LateStreams
from tests.settings import DEVICES, TINY

HOTLINE = [*TINY, "knobs.policy=hotline", "run.split=always"]
STREAMS = {
    "direct": lambda: None,
    "late": lambda: LateStreams(seed=3),
    "cuda": lambda: CudaStreams(torch.device("cuda")),
}


class Arranger(ArrangingPolicy):
    name = "arranger"


def build(*changes: str, device: str = "direct") -> Runtime:
    streams = STREAMS[device]()
    return assemble(load_config(None, {}, [*HOTLINE, *changes]), None, streams)


def tables_of(runtime: Runtime) -> list[np.ndarray]:
    return [runtime.store.contents.export(table)[0] for table in range(len(runtime.store.space.tables))]


class Answers:
    """Collects what comes of commands."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.all: list[Any] = []

    def send(self, verb: Any, **values: Any) -> None:
        self.runtime.mailbox.send(Command(verb, values, self.all.append))


def when_paused(runtime: Runtime, act: Callable[[], object]) -> None:
    """Call a function from another thread once the run is paused."""

    def wait() -> None:
        while runtime.state.phase != "paused":
            time.sleep(0.001)
        act()

    threading.Thread(target=wait, daemon=True).start()


def events(reports: Iterator[Any], kind: str) -> list[Event]:
    return [report for report in reports if isinstance(report, Event) and report.kind == kind]


# Pausing and stopping ------------------------------------------------------------------------------------------------


def test_a_paused_run_makes_no_step_takes_knobs_and_resumes() -> None:
    runtime = build()
    answers = Answers(runtime)
    seen: list[tuple[int, str, float]] = []
    paused = 0.0

    def look() -> None:
        seen.append((runtime.step_number, runtime.state.phase, runtime.knobs.alpha))

    def steer() -> None:
        nonlocal paused
        began = time.perf_counter()
        look()
        answers.send("change_knobs", alpha=0.5)
        while len(answers.all) < 2:  # commands are carried out while paused
            time.sleep(0.001)
        time.sleep(0.05)
        look()
        paused = time.perf_counter() - began
        answers.send("resume")

    last = None
    for report in runtime.run():
        last = report if isinstance(report, Snapshot) else last
        if isinstance(report, Snapshot) and report.step == 7:
            answers.send("pause")
            when_paused(runtime, steer)
    assert seen == [(8, "paused", 0.9), (8, "paused", 0.5)]
    assert [answer["step"] for answer in answers.all] == [8, 8, 8]
    assert answers.all[1]["changed"] == {"alpha": {"old": 0.9, "new": 0.5}}
    assert runtime.step_number == 60
    assert last is not None
    assert last.seconds < runtime.recorder.seconds + 0.01
    assert runtime.recorder._clock._paused_seconds >= paused > 0.05, "the run's clock stood still"


def test_a_checkpoint_requested_in_a_pause_does_not_stop_the_clock_twice(tmp_path: Path) -> None:
    config = load_config(None, {}, [*HOTLINE, "run.steps=10"])
    runtime = assemble(config, options=RunOptions(tmp_path))
    answers = Answers(runtime)
    answers.send("pause")
    answers.send("checkpoint")
    paused = 0.0

    def resume_when_written() -> None:
        nonlocal paused
        began = time.perf_counter()
        while len(answers.all) < 2:
            time.sleep(0.001)
        time.sleep(0.05)
        paused = time.perf_counter() - began
        answers.send("resume")

    when_paused(runtime, resume_when_written)
    began = time.perf_counter()
    list(runtime.run())
    passed = time.perf_counter() - began
    assert [answer["checkpoint"] for answer in answers.all if "checkpoint" in answer] == ["step-000000001"]
    assert (tmp_path / "step-000000001" / "MANIFEST.json").exists()
    assert paused > 0.05
    assert 0 < runtime.recorder.seconds <= passed - paused


@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_the_run_after_the_step(paused: bool) -> None:
    runtime = build()
    answers = Answers(runtime)
    if paused:
        answers.send("pause")
        when_paused(runtime, lambda: answers.send("stop"))
    else:
        answers.send("stop")
    reports = list(runtime.run())
    assert runtime.step_number == 1
    assert runtime.state.phase == "finishing"
    assert [event.step for event in events(iter(reports), "stopping")] == [1]
    with pytest.raises(ConflictError, match="the run has ended"):
        answers.send("pause")


def test_a_signal_ends_a_paused_run() -> None:
    runtime = build()
    Answers(runtime).send("pause")
    when_paused(runtime, runtime.hurry)
    list(runtime.run())
    assert runtime.step_number == 1


def test_a_signal_late_in_the_wait_does_not_make_it_endless() -> None:
    """As on a busy machine: the time is up before the signal's handler is done."""
    mailbox = Mailbox(Knobs())
    guard = threading.Timer(300, lambda: mailbox.send(Command("pause")))
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.2))
    try:
        guard.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert mailbox.wait(0.2) == []
    finally:
        guard.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_leaves_out_the_evaluations(tmp_path: Path) -> None:
    run = TrainingRun(load_config(None, {}, [*HOTLINE, "eval.every_steps=5", "eval.batch_size=8"]), tmp_path / "run")
    seen = []
    for report in run.events():
        seen.append(type(report).__name__)
        if isinstance(report, Snapshot) and report.step == 10:
            run.runtime.hurry()
    assert seen.count("Evaluation") == 1, "that of step 5"
    assert run.finish()["eval"] is None
    assert run.runtime.step_number == 10


def test_commands_left_when_the_run_ends_are_answered() -> None:
    runtime = build("run.steps=3")
    answers = Answers(runtime)
    for report in runtime.run():
        if isinstance(report, Snapshot) and report.step == 3:
            answers.send("pause")
            answers.send("change_knobs", alpha=0.5)
    assert [type(answer) for answer in answers.all] == [ConflictError, ConflictError]
    assert runtime.knobs.alpha == 0.9


def test_what_cannot_be_done_is_answered_and_does_not_stop_the_run() -> None:
    runtime = build("knobs.policy=hybrid", "run.steps=5")
    answers = Answers(runtime)
    answers.send("checkpoint")
    answers.send("reclassify")
    reports = list(runtime.run())
    assert [type(answer) for answer in answers.all] == [ConflictError, ConflictError]
    assert "no folder for checkpoints" in str(answers.all[0])
    assert "never moves rows" in str(answers.all[1])
    assert [event.step for event in events(iter(reports), "warning")] == [1, 1]
    assert runtime.step_number == 5


def test_reclassify_moves_rows_at_once_and_lets_no_count_fade() -> None:
    runtime = build("knobs.reclassify_every=1000", "run.steps=6")
    answers = Answers(runtime)
    for report in runtime.run():
        if isinstance(report, Snapshot) and report.step == 4:
            assert report.hot_rows == 0
            answers.send("reclassify")
        if isinstance(report, Event) and report.kind == "reclassified":
            decays = runtime.observer.tracker.counter.decays  # type: ignore[attr-defined]
            estimates = runtime.observer.tracker.estimate(np.arange(109))
            assert decays == 1
            assert estimates.sum() == pytest.approx(5 * 32 * 3, rel=0.2), "a factor of one"
    assert answers.all[0]["step"] == 5
    assert answers.all[0]["promoted"] == runtime.store.hot.tier.hot_rows > 0


# Policies ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], list[np.ndarray]]:
    """Losses and tables of plain steps on the same stream."""
    runtime = build("knobs.policy=hybrid")
    return [report.loss for report in runtime.run() if isinstance(report, Snapshot)], tables_of(runtime)


@pytest.mark.parametrize("device", DEVICES)
def test_exact_policies_taking_over_from_each_other_change_no_result(device: str, plain: Any) -> None:
    losses, tables = plain
    turns = {10: "hybrid", 20: "device_only", 30: "hotline", 40: "hybrid", 50: "hotline"}
    runtime = build("knobs.prefetch_depth=3", device=device)
    seen, hot = [], {}
    for report in runtime.run():
        if isinstance(report, Snapshot):
            seen.append(report.loss)
            if report.step in turns:
                runtime.mailbox.change_knobs(policy=turns[report.step])
            if report.step % 10 == 9:
                hot[report.step] = report.hot_rows
    np.testing.assert_allclose(seen, losses, rtol=1e-12)
    for mine, theirs in zip(tables_of(runtime), tables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-11)
    assert hot[19] == 0, "hybrid has no hot rows"
    assert hot[29] == 109, "device_only has no others"
    assert 0 < hot[39] < 109
    assert hot[49] == 0
    assert 0 < hot[59] < 109


def test_a_policy_that_skips_takes_over_and_hands_back() -> None:
    runtime = build(
        "knobs.probe_ratio=0.5",
        "knobs.min_probe_touches=1",
        "knobs.target_skip_ratio=0.5",
        "knobs.action=freeze",
        "knobs.min_touch_ratio=0",
        "run.steps=90",
    )
    stale, skipped, monitors = {}, {}, {}
    for report in runtime.run():
        if isinstance(report, Snapshot):
            stale[report.step], skipped[report.step] = report.stale_rows, report.totals["row_updates_skipped"]
            monitors[report.step] = len(runtime.store.hot.tier.monitors)
            if report.step == 20:
                runtime.mailbox.change_knobs(policy="slipstream", stale_metric="signal_to_noise")
            if report.step == 40:
                runtime.mailbox.change_knobs(stale_metric="popularity")
            if report.step == 60:
                runtime.mailbox.change_knobs(policy="hotline")
    assert [monitors[step] for step in (20, 22, 42, 62)] == [0, 1, 0, 0], "movement is recorded only for rules that go by it"
    assert max(stale[step] for step in range(1, 21)) == 0
    assert max(stale[step] for step in range(30, 40)) > 0
    assert max(stale[step] for step in range(50, 60)) > 0
    assert skipped[60] > 0
    assert stale[62] == 0
    assert skipped[90] == skipped[62], "nothing is skipped by the policy that took over"


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("slipstrem", ConfigError, "did you mean slipstream"),
        (f"{__name__}:Arranger", ConflictError, "arranges the stream"),
        ("", ConfigError, "policy"),
    ],
)
def test_a_policy_that_cannot_take_over_is_refused_where_it_is_requested(
    name: str, error: type[AdaptiveRecError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    runtime = build("run.steps=3")
    with pytest.raises(error, match=said):
        runtime.mailbox.change_knobs(policy=name, alpha=0.5)
    list(runtime.run())
    assert (runtime.knobs.policy, runtime.knobs.alpha) == ("hotline", 0.9)


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__["Arranger"] = Arranger
    return module


class Faulty(Policy):
    """Places nothing, and fails at its first window."""

    name = "faulty"
    tracks_popularity = True

    def place(self, view: AccessView) -> Wish:
        raise ZeroDivisionError("a fault of the policy")


@pytest.mark.parametrize("fault", ["policy", "memory"])
def test_knobs_whose_placement_fails_are_refused_and_all_is_as_before(
    fault: str, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues, with its old tier filled again and no result changed."""
    losses, _ = plain
    runtime = build()
    answers, seen, hot = Answers(runtime), [], {}
    real = HotRows._make_tier

    def short_of_memory(hot: HotRows, capacities: list[int]) -> Any:
        if sum(capacities) > 70:
            raise MemoryError("out of memory")
        return real(hot, capacities)

    monkeypatch.setattr(HotRows, "_make_tier", short_of_memory)
    monkeypatch.setattr("adaptive_rec.runtime.control.load_policy", lambda name: Faulty())
    for report in runtime.run():
        if isinstance(report, Snapshot):
            seen.append(report.loss)
            hot[report.step] = report.hot_rows
            if report.step == 20:
                answers.send(
                    "change_knobs",
                    **({"hot_budget_bytes": 3000} if fault == "memory" else {"policy": "hybrid"}),
                    alpha=0.5,
                )
    assert [type(answer) for answer in answers.all] == [ConflictError]
    assert ("out of memory" if fault == "memory" else "a fault of the policy") in str(answers.all[0])
    assert (runtime.knobs.policy, runtime.knobs.alpha, runtime.policy.name) == ("hotline", 0.9, "hotline")
    assert runtime.mailbox.desired == runtime.knobs, "what was refused is not wanted any more"
    assert hot[21] == hot[20] > 0
    np.testing.assert_allclose(seen, losses, rtol=1e-12)


def test_the_sketch_grows_with_the_tier_and_keeps_what_it_knows() -> None:
    table = "data.table_rows=[400000]"
    runtime = build(
        "knobs.policy=hotline", table, "data.max_table_rows=400000", "knobs.hot_budget_bytes=4000", "run.steps=30"
    )
    narrow = runtime.observer.tracker.counter.bytes
    for report in runtime.run():
        if isinstance(report, Snapshot) and report.step == 20:
            rows = runtime.observer.tracker.candidates().copy()
            before = runtime.observer.tracker.estimate(rows)
            runtime.mailbox.change_knobs(hot_budget_bytes=40_000_000)
        if isinstance(report, Event) and report.kind == "knobs":
            assert runtime.observer.tracker.counter.bytes > 4 * narrow
            after = runtime.observer.tracker.estimate(rows)
            assert (after >= before).all()
            assert np.median(after - before) < 1


# The journal ---------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


STEERING = {
    4: [Command("change_knobs", {"target_skip_ratio": 0.8})],
    13: [Command("change_knobs", {"hot_budget_bytes": 900, "decay": 0.2})],
    17: [Command("reclassify")],
    25: [Command("change_knobs", {"policy": "hotline"})],
    33: [Command("change_knobs", {"policy": "slipstream", "action": "drop"}), Command("change_knobs", {"alpha": 0.4})],
}


def test_a_run_made_again_from_its_journal_is_the_same_run(tmp_path: Path) -> None:
    """Knobs, budget, policy and windows changed on the way; every loss and every row is bit-equal."""
    config = load_config(
        None, {}, [*HOTLINE, "run.steps=45", "knobs.policy=slipstream", "knobs.probe_ratio=0.5", "knobs.min_probe_touches=1"]
    )
    steered = TrainingRun(config, tmp_path / "steered")
    for report in steered.events():
        if isinstance(report, Snapshot):
            for command in STEERING.get(report.step, ()):
                steered.runtime.mailbox.send(command)
    steered.finish()
    again = TrainingRun(config, tmp_path / "again", replay=tmp_path / "steered")
    list(again.events())
    again.finish()
    plain = TrainingRun(config, tmp_path / "plain")
    list(plain.events())

    def losses(run: str) -> list[float]:
        return [line["loss"] for line in lines_of(tmp_path / run / "metrics.jsonl") if line["event"] == "snapshot"]

    assert losses("again") == losses("steered")
    assert losses("plain") != losses("steered"), "the changes did change something"
    for mine, theirs in zip(tables_of(again.runtime), tables_of(steered.runtime), strict=True):
        assert mine.tobytes() == theirs.tobytes()

    def changes(run: str) -> list[Any]:
        lines = lines_of(tmp_path / run / "events.jsonl")
        return [(line["step"], line["details"]) for line in lines if line["kind"] in ("knobs", "reclassified")]

    assert changes("again") == changes("steered")


def test_the_journal_has_steps_old_and_new_values(tmp_path: Path) -> None:
    run = TrainingRun(load_config(None, {}, [*HOTLINE, "run.steps=20"]), tmp_path / "run")
    run.runtime.mailbox.change_knobs(alpha=0.5, decay=0.1)
    list(run.events())
    run.finish()
    lines = lines_of(tmp_path / "run" / "events.jsonl")
    knobs = next(line for line in lines if line["kind"] == "knobs")
    assert knobs["step"] == 1
    assert knobs["details"]["changed"] == {"decay": {"old": 0.6, "new": 0.1}, "alpha": {"old": 0.9, "new": 0.5}}
    assert [line["kind"] for line in lines if line["kind"] != "reclassified"] == [
        "started",
        "knobs",
        "saving",
        "checkpoint",
        "evaluation",
        "finished",
    ]
    assert abs(lines[0]["time"] - time.time()) < 600


def test_a_journal_that_cannot_be_read_says_which_line(tmp_path: Path) -> None:
    config = load_config(None, {}, HOTLINE)
    with pytest.raises(DataError, match=r"events\.jsonl cannot be read"):
        TrainingRun(config, tmp_path / "run", replay=tmp_path)
    (tmp_path / "events.jsonl").write_text('{"kind": "paused", "step": 1, "details": {}}\n{"kind": "knobs"\n')
    with pytest.raises(DataError, match="line 2"):
        TrainingRun(config, tmp_path / "run", replay=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_replayed_run_reports_its_changes_to_the_mailbox(tmp_path: Path) -> None:
    config = load_config(None, {}, [*HOTLINE, "run.steps=10"])
    steered = TrainingRun(config, tmp_path / "steered")
    steered.runtime.mailbox.change_knobs(alpha=0.25)
    list(steered.events())
    again = TrainingRun(config, tmp_path / "again", replay=tmp_path / "steered")
    reported = []
    again.runtime.mailbox._knobs_changed = lambda: reported.append(again.runtime.mailbox.desired.alpha)
    list(again.events())
    assert reported[:2] == [0.25, 0.25], "when it is requested, and when it is done"
    assert again.runtime.mailbox.desired.alpha == 0.25


def test_a_torn_line_is_no_journal_unless_a_start_follows_it(tmp_path: Path) -> None:
    config = load_config(None, {}, [*HOTLINE, "run.steps=20"])
    run = TrainingRun(config, tmp_path / "run", resume=True)
    list(run.events())
    with open(tmp_path / "run" / "events.jsonl", "a") as journal:
        journal.write('{"kind": "kno')  # killed in the middle of a line
    run.log.note("checkpoint", "written after a torn line")
    assert json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])["kind"] == "checkpoint"
    with pytest.raises(DataError, match="line"):
        TrainingRun(config, tmp_path / "again", replay=tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()[:-1]
    (tmp_path / "run" / "events.jsonl").write_text("\n".join(lines) + "\n")
    run.runtime.state.set_step(0)
    run.log.note("started", "again from the start")
    TrainingRun(config, tmp_path / "again", replay=tmp_path / "run")
    run.runtime.state.set_step(3)
    run.log.note("started", "from an unknown place")
    with pytest.raises(DataError, match="must name the checkpoint that the run was resumed from at step 3"):
        TrainingRun(config, tmp_path / "once more", replay=tmp_path / "run")


def test_a_run_that_fails_says_so_in_its_journal(tmp_path: Path) -> None:
    run = TrainingRun(
        load_config(None, {}, [*HOTLINE, "optimizer.dense_lr=1e30", "run.precision=float32"]), tmp_path / "run"
    )
    with pytest.raises(TrainingError):
        list(run.events())
    last = lines_of(tmp_path / "run" / "events.jsonl")[-1]
    assert last["kind"] == "failed"
    assert "finite" in last["text"]
    assert run.runtime.state.phase == "failed"


def test_every_verb_is_carried_out() -> None:
    assert {"checkpoint", "rollback", "evaluate", "put_off_trial"} | build().control._verbs.keys() == set(get_args(Verb))
