"""A run of several ranks that is steered and saved. The ranks are threads, whose messages are late by a seed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.files import Disk
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.peers.rank_peers import RankPeers
from adaptive_rec.errors import MemoryPlanError, TrainingError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.shared_state import StateReader
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.run.follower import Follower
from adaptive_rec.run.resume import resume_run
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system import group_meter
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY

HOTLINE = [*TINY, "knobs.policy=hotline"]


def config(*changes: str) -> Any:
    return load_config(None, {}, [*HOTLINE, *changes])


def tables_of(checkpoint_of: Path) -> list[np.ndarray]:
    """The tables of a run's newest checkpoint, as one process reads them."""
    runtime = assemble(load_config(str(checkpoint_of / "config.toml"), {}))
    checkpoint.load(runtime.parts, checkpoint.newest(checkpoint_of / "checkpoints"))
    return [each for table in range(len(runtime.store.space.tables)) for each in runtime.store.contents.export(table)]


def trained(out: Path, ranks: int, *changes: str, resume: bool = False, until: int = 0) -> dict[str, Any]:
    """Train in `out` as the command line does, with so many ranks. Returns the summary. `until`: step after which a signal
    comes to rank 0."""

    def of_rank(group: Group) -> dict[str, Any] | None:
        if group.rank:
            Follower(config(*changes), out, resume, (), group).train()
            return None
        training = TrainingRun(config(*changes), out, resume, group=group)
        training.runtime.state.pause_as_saved(reachable=group.tell(False))
        for report in training.events():
            if until and isinstance(report, Snapshot) and report.step == until:
                training.runtime.hurry()
        return training.finish()

    found = LateThreads.train(ranks, of_rank) if ranks > 1 else [of_rank(Alone())]
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize(("others", "steps"), [((1, 3), 24), pytest.param((1, 3, 2), 60, marks=pytest.mark.slow)], ids=str)
def test_a_checkpoint_of_some_ranks_goes_on_under_any_other_number(tmp_path: Path, others: tuple[int, ...], steps: int) -> None:
    all_steps, saved = f"run.steps={steps}", f"checkpoint.every_steps={steps // 6}"
    whole = trained(tmp_path / "whole", 1, all_steps)
    began = trained(tmp_path / "2", 2, f"run.steps={steps // 2}", saved)
    assert began["processes"] == 2
    assert checkpoint.find(tmp_path / "2" / "checkpoints").skipped == []

    for ranks in others:
        out = shutil.copytree(tmp_path / "2", tmp_path / f"2-{ranks}")
        summary = trained(out, ranks, all_steps, resume=True)
        assert summary["samples_seen"] == whole["samples_seen"]
        assert summary["row_updates"] == whole["row_updates"]
        assert summary["train_logloss"] == pytest.approx(whole["train_logloss"], rel=1e-12)
        assert summary["eval"]["auc"] == pytest.approx(whole["eval"]["auc"], rel=1e-9)
        for one, other in zip(tables_of(tmp_path / "whole"), tables_of(out), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    if 2 in others:
        once, again = tables_of(tmp_path / "2-2"), trained(tmp_path / "unbroken", 2, all_steps, saved)
        assert again["steps"] == steps
        for one, other in zip(once, tables_of(tmp_path / "unbroken"), strict=True):
            np.testing.assert_array_equal(one, other)


LONG_BAGS = ["data.table_rows=[6000, 4000, 9]", "data.synthetic.feature_lookups=[40, 30, 1]", "data.synthetic.head_ratio=0.5"]


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, []),
        (2, ["run.whole_tables=false"]),
        pytest.param(3, [], marks=pytest.mark.slow),
        pytest.param(1, [], marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_ranks_that_own_tables_whole_goes_on(ranks: int, changes: list[str], tmp_path: Path) -> None:
    """As many ranks that own the same tables go on bit by bit."""
    whole = trained(tmp_path / "whole", 2, *LONG_BAGS, "run.steps=24", "knobs.hot_budget_bytes=20000")
    trained(tmp_path / "run", 2, *LONG_BAGS, "run.steps=12", "knobs.hot_budget_bytes=20000")
    again = trained(tmp_path / "run", ranks, *LONG_BAGS, "run.steps=24", "knobs.hot_budget_bytes=20000", *changes, resume=True)

    assert again["resumed_at_step"] == 12
    same = ranks == 2 and not changes
    assert not same or again["migrated_rows"] == whole["migrated_rows"]
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if same else 1e-11)


def test_tables_with_long_bags_have_one_owner_where_the_ranks_stay_even() -> None:
    def homes(group: Group, *changes: str) -> Any:
        return assemble(config(*changes), group=group).store.peers.home_T

    def of(ranks: int, *changes: str) -> list[Any]:
        return LateThreads.train(ranks, lambda group: homes(group, *changes))

    assert of(2, *LONG_BAGS) == [(0, 1, -1)] * 2
    assert of(3, *LONG_BAGS) == [()] * 3, "two tables cannot be spread over three"
    assert of(2, *LONG_BAGS, "data.table_rows=[6000, 400, 9]") == [()] * 2, "one of them would have nearly all rows"
    assert of(2, *LONG_BAGS, "run.whole_tables=false") == [()] * 2
    assert of(2) == [()] * 2, "bags of one id"


def test_evaluations_count_the_samples_of_all_ranks(tmp_path: Path) -> None:
    trained(tmp_path / "run", 2, "eval.every_steps=5", "run.steps=15")
    trained(tmp_path / "run", 2, "eval.every_steps=5", "run.steps=30", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    size = config().run.batch_size
    found = {line["step"]: line["samples_seen"] for line in lines if line["event"] == "evaluation"}
    assert found == {step: step * size for step in range(5, 31, 5)}


@pytest.mark.slow
def test_one_process_writes_what_several_read(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1, "run.steps=8")
    trained(tmp_path / "run", 3, "run.steps=16", resume=True)
    trained(tmp_path / "whole", 1, "run.steps=16")
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


SKIPPING = ["run.batch_size=24", "knobs.probe_ratio=0.5", "knobs.min_probe_touches=1", "knobs.target_skip_ratio=0.5"]


ACTIONS = {
    "hotline": "freeze", "cdlrm": "freeze", "oracle": "freeze", "xdl": "freeze", "slipstream": "drop", "adaptive": "freeze",
    "random_skip": "subsample",
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "steps"), [("slipstream", 24), *(pytest.param(policy, 60, marks=pytest.mark.slow) for policy in ACTIONS)]
)
def test_the_same_number_of_ranks_goes_on_as_if_unbroken(policy: str, steps: int, tmp_path: Path) -> None:
    changes = [*SKIPPING, f"knobs.policy={policy}", f"knobs.action={ACTIONS[policy]}", "knobs.hot_budget_bytes=1000"]
    changes += [f"run.steps={steps}"]
    whole = trained(tmp_path / "whole", 2, *changes)
    first = trained(tmp_path / "run", 2, *changes, until=steps // 2 + 2)
    again = trained(tmp_path / "run", 2, *changes, resume=True)
    assert again["resumed_at_step"] == first["steps"] == steps // 2 + 3
    assert policy != "slipstream" or whole["samples_trained"] < whole["samples_seen"]
    for name in ("samples_trained", "row_updates", "row_updates_skipped", "hot_rows", "stale_rows", "migrated_rows", "eval"):
        assert again[name] == whole[name], name
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("saved_by", "ranks"), [(2, 1), (3, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2), (2, 3)))]
)
def test_another_number_of_ranks_begins_with_the_rows_that_were_popular(saved_by: int, ranks: int, tmp_path: Path) -> None:
    """Within the same budget for all of them: 1200 bytes, for 37 of 109 rows."""
    budget = "knobs.hot_budget_bytes={}"
    trained(tmp_path / "run", saved_by, "run.steps=18", budget.format(1200 // saved_by))
    changed = config(budget.format(1200 // ranks))

    def of_rank(group: Group) -> Snapshot:
        found = checkpoint.find(tmp_path / "run" / "checkpoints")
        runtime = resume_run(changed, tmp_path / "run", found, ["hot_budget_bytes"], group).runtime
        return next(report for report in runtime.run() if isinstance(report, Snapshot))

    first = (LateThreads.train(ranks, of_rank) if ranks > 1 else [of_rank(Alone())])[0]
    assert first.step == 19
    assert first.hot_lookup_ratio > 0.5


class FullDisk(Disk):
    """A disk on which one rank's rows have no room."""

    def create(self, path: Path) -> Any:
        if path.name.startswith("rows-1"):
            raise OSError(28, "No space left on device")
        return super().create(path)


def test_a_rank_that_cannot_write_leaves_no_checkpoint_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import adaptive_rec.runtime.checkpoints as module

    real = module.Writing
    monkeypatch.setattr(module, "Writing", lambda parts, folder, journal: real(parts, folder, FullDisk(), journal))

    def of_rank(group: Group) -> list[Event]:
        runtime = assemble(config("checkpoint.every_steps=8", "run.steps=24"), options=RunOptions(tmp_path / "c"), group=group)
        events = [event for event in runtime.run() if isinstance(event, Event)]
        assert runtime.step_number == 24
        return events

    for events in LateThreads.train(2, of_rank):
        failed = [event.text for event in events if event.kind == "checkpoint_failed"]
        assert len(failed) == 2
        assert all("rank 1" in text for text in failed)
        assert all("No space left on device" in text for text in failed)
    assert checkpoint.find(tmp_path / "c").generation is None


def steered(steer: Callable[[Runtime, Snapshot], None], ranks: int = 3, **options: Any) -> list[tuple[Runtime, list[Any]]]:
    """Train and let rank 0 be steered after each snapshot. Returns runtime and reports of each rank."""

    def of_rank(group: Group) -> tuple[Runtime, list[Any]]:
        runtime, reports = assemble(config(), options=RunOptions(**options), group=group), []
        for report in runtime.run():
            reports.append(report)
            if group.rank == 0 and isinstance(report, Snapshot):
                steer(runtime, report)
        return runtime, reports

    return LateThreads.train(ranks, of_rank)


def test_all_ranks_carry_out_a_command_at_the_same_step() -> None:
    answers: list[Any] = []

    def steer(runtime: Runtime, snapshot: Snapshot) -> None:
        if snapshot.step == 6:
            runtime.mailbox.send(Command("change_knobs", {"hot_budget_bytes": 400, "alpha": 0.25}, answers.append))
        if snapshot.step == 11:
            runtime.mailbox.send(Command("pause", {}, answers.append))
            runtime.mailbox.send(Command("resume", {}, answers.append))
        if snapshot.step == 16:
            runtime.mailbox.send(Command("stop", {}, answers.append))

    found = steered(steer)

    shown = [[(event.step, event.kind) for event in reports if isinstance(event, Event)] for _, reports in found]
    assert shown[0] == shown[1] == shown[2]
    assert [kind for _, kind in shown[0] if kind in ("knobs", "paused", "stopping")] == ["knobs", "paused", "stopping"]
    assert {runtime.step_number for runtime, _ in found} == {17}
    assert {runtime.knobs.alpha for runtime, _ in found} == {0.25}
    assert [answer["step"] for answer in answers] == [7, 12, 12, 17]


@pytest.mark.parametrize("changes", [{"hot_budget_bytes": 900}, pytest.param({"policy": "hybrid"}, marks=pytest.mark.slow)])
def test_a_change_that_one_rank_cannot_make_is_made_by_none(changes: dict[str, Any]) -> None:
    answers: list[Any] = []

    def of_rank(group: Group) -> tuple[Any, ...]:
        runtime, events = assemble(config("run.steps=25"), group=group), []
        resize, refused = runtime.store.resize, [] if group.rank == 1 else ["only rank 1 has too little memory"]

        def resized(*where: Any) -> Any:
            if not refused and runtime.step_number == 21:
                refused.append("once")
                raise MemoryError("no room")
            return resize(*where)

        runtime.store.resize = resized
        for report in runtime.run():
            events += [report.text] if isinstance(report, Event) and report.kind == "warning" else []
            if group.rank == 0 and isinstance(report, Snapshot) and report.step == 20:
                runtime.mailbox.send(Command("change_knobs", changes, answers.append))
        return runtime.step_number, runtime.knobs, runtime.policy.name, runtime.store.hot.tier.capacities, events

    found = LateThreads.train(3, of_rank)
    assert found[0][0] == 25
    assert found[0] == found[1] == found[2]
    assert found[0][1:3] == (config().knobs, "hotline")
    assert "rank 1: no room" in found[0][4][0]
    assert "rank 1: no room" in str(answers[0])


def test_a_signal_to_one_rank_stops_all_after_the_same_step() -> None:
    def of_rank(group: Group) -> int:
        runtime = assemble(config(), group=group)
        for report in runtime.run():
            if group.rank == 2 and isinstance(report, Snapshot) and report.step == 7:
                runtime.hurry()
        assert runtime.state.hurried
        return runtime.step_number

    steps = LateThreads.train(3, of_rank)
    assert len(set(steps)) == 1
    assert 7 <= steps[0] < 10


def test_rank_0_shows_the_placement_of_all_ranks() -> None:
    def of_rank(group: Group) -> Any:
        runtime = assemble(config("run.steps=20"), group=group)
        list(runtime.run())
        store = runtime.store
        assert isinstance(store.peers, RankPeers)
        hot = np.concatenate(store.hot.tier.row_of_slot)
        return store.peers.ownership.joint_rows(hot[hot >= 0]), store.peers.shown_placement(), runtime.reports.totals()

    found = LateThreads.train(2, of_rank)
    hot = np.sort(np.concatenate([rows for rows, _, _ in found]))
    slot_of_row, tiers = found[0][1]
    assert len(hot)
    np.testing.assert_array_equal(np.flatnonzero(slot_of_row >= 0), hot)
    np.testing.assert_array_equal(tiers[0].row_of_slot_H[slot_of_row[hot]], hot)
    assert found[0][2] == found[1][2]


def test_figures_of_placement_are_those_of_all_ranks() -> None:
    def of_rank(group: Group) -> Any:
        runtime = assemble(config("knobs.hot_budget_bytes=1000", "run.steps=20"), group=group)
        writer = runtime.publisher.open() if group.rank == 0 else None
        events = [report.details for report in runtime.run() if isinstance(report, Event) and report.kind == "reclassified"]
        return runtime.store, events, StateReader(writer.fd, writer.layout).board() if writer else {}

    found = LateThreads.train(3, of_rank)
    hot_rows = sum(store.hot.tier.hot_rows for store, _, _ in found)
    _, events, board = found[0]
    assert 0 < found[0][0].hot.tier.hot_rows < hot_rows
    assert events[-1]["hot_rows"] == hot_rows
    assert board["placement"]["device_bytes"] == sum(store.hot.bytes for store, _, _ in found)
    assert board["placement"]["budget_bytes"] == 3 * 1000


def test_rank_0_shows_no_more_slots_than_there_are_rows() -> None:
    """Each of three ranks has slots for a third of a table's rows, rounded up."""

    def of_rank(group: Group) -> Any:
        runtime = assemble(config("knobs.policy=device_only", "run.steps=12"), group=group)
        list(runtime.run())
        return runtime.store.peers.shown_placement()

    slot_of_row, tiers = LateThreads.train(3, of_rank)[0]
    assert len(tiers[0].row_of_slot_H) == len(slot_of_row) == 60 + 40 + 9
    np.testing.assert_array_equal(tiers[0].row_of_slot_H[slot_of_row], np.arange(len(slot_of_row)))


def test_a_loss_that_is_not_finite_ends_all_ranks_by_name(memory_source: Any) -> None:
    whole = assemble(config())
    batches = list(whole.batches())[:5]
    dense_BX = batches[3].dense_BX.copy()
    dense_BX[-1, 0] = np.nan  # a sample of the last rank
    batches[3] = batches[3].__class__(dense_BX, batches[3].ids_N, batches[3].offsets, batches[3].labels_B)
    source = memory_source(batches, whole.source.tables, whole.source.features)

    def of_rank(group: Group) -> str:
        with pytest.raises(TrainingError) as caught:
            list(assemble(config(), source, group=group).run())
        return str(caught.value)

    one, other = LateThreads.train(2, of_rank)
    assert one == other
    assert "finite" in one


def test_batches_smaller_than_the_number_of_ranks(memory_source: Any) -> None:
    whole = assemble(config("run.batch_size=2", "run.steps=7"))
    batches = list(whole.batches())

    def losses(group: Group) -> list[float]:
        source = memory_source(batches, whole.source.tables, whole.source.features)
        runtime = assemble(config("run.batch_size=2"), source, group=group)
        return [report.loss for report in runtime.run() if isinstance(report, Snapshot)]

    alone = losses(Alone())
    for several in LateThreads.train(5, losses):
        np.testing.assert_allclose(several, alone, rtol=1e-12)


def test_ranks_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two ranks needs a bit more than half of what is free."""
    needed = 0

    def available() -> int:
        return 2 * needed - 2

    def check(plan: MemoryPlan) -> None:
        nonlocal needed
        needed = plan.available_bytes["host"] - plan.free("host")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryPlan, "check", check)
        LateThreads.train(2, lambda group: assemble(config(), group=group))
    monkeypatch.setattr("adaptive_rec.runtime.assemble.available_bytes", available)
    monkeypatch.setattr("adaptive_rec.runtime.assemble.least_parameters", lambda *_: 0)
    assemble(config())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(MemoryPlanError, match="host memory"):
        LateThreads.train(2, lambda group: assemble(config(), group=group))


def test_a_rank_that_fails_ends_the_others() -> None:
    def of_rank(group: Group) -> None:
        for report in assemble(config(), group=group).run():
            if group.rank == 1 and isinstance(report, Snapshot) and report.step == 9:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LateThreads.train(3, of_rank)


def test_a_group_counts_the_bytes_that_it_sends_and_the_time_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(group_meter, "time", SimpleNamespace(perf_counter=lambda: now))

    def arrive_last(group: Any) -> None:
        """Let seconds pass while both others wait for this rank."""
        nonlocal now
        while len(group._channel._posted.get(group._operations + 1, ())) < 2:
            time.sleep(0.001)
        now += 0.25

    def of_rank(group: Group) -> Any:
        group.add("dense", np.zeros(30))
        group.fork().add("dense", np.zeros(30))
        group.exchange("rows", np.zeros((6, 2)), np.array([1, 2, 3]), np.full(3, 1 + group.rank))
        if group.rank == 1:
            arrive_last(group)
        before = group.meter.waited()
        group.gather(np.array([7]))
        return dict(group.meter.sent_bytes), group.meter.waited() - before, group.meter.waited_ahead()

    found = LateThreads.train(3, of_rank)
    assert [sent for sent, _, _ in found] == [{"dense": 2 * 320, "rows": 16 * (6 - own)} for own in (1, 2, 3)]
    assert [waited for _, waited, _ in found] == [0.25, 0.0, 0.25]
    assert {ahead for _, _, ahead in found} == {0.0}


def test_messages_of_a_group() -> None:
    def of_rank(group: Group) -> Any:
        own = np.arange(group.rank)
        return (
            group.share({"rank": group.rank, "text": "x" * 10 * group.rank}), group.tell(group.rank + 7),
            group.total(np.array([group.rank, 1])).tolist(), group.everyone(own).tolist(),
            group.all_true(group.rank > 0), group.any_true(group.rank > 0), group.part_of(7),
        )  # fmt: skip

    for found in LateThreads.train(3, of_rank):
        assert [each["rank"] for each in found[0]] == [0, 1, 2]
        assert found[1:6] == (7, [3, 3], [0, 0, 1], False, True)
    parts = [found[6] for found in LateThreads.train(3, of_rank)]
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 7)]
    assert Alone().share(3) == [3]
