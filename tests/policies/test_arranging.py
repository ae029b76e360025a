"""Runs under policies that arrange the stream: every sample once, stops, resumed runs, changed knobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, Position
from adaptive_rec.errors import CheckpointError, ConflictError, TrainingError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.batches import repack
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime.loop import Runtime
from tests.matrix import always, grid, only
from tests.policies.settings import EPOCHS

ARRANGING = tuple(name for name in BUILT_IN if load_policy(name).arranges_stream)
REORDERING = tuple(name for name in ARRANGING if load_policy(name).reorders_stream)


def keys(batch: Batch) -> list[bytes]:
    """Return the contents of each sample of a batch."""
    features = (len(batch.offsets) - 1) // batch.size
    bounds = batch.offsets[::features]
    return [
        batch.dense_BX[b].tobytes() + batch.labels_B[b].tobytes() + batch.ids_N[bounds[b] : bounds[b + 1]].tobytes()
        for b in range(batch.size)
    ]


def source_keys(runtime: Runtime) -> Counter[bytes]:
    batches = runtime.source.train_batches(Position(seed=runtime.config.run.seed), runtime.config.run.batch_size)
    return Counter(key for batch in batches for key in keys(batch))


@pytest.mark.parametrize("policy", [*ARRANGING, "example_policy:EvenThenOdd"])
def test_every_sample_of_each_epoch_is_trained_once_or_counted_as_skipped(watch: Any, policy: str) -> None:
    seen = watch(policy, *EPOCHS)
    wanted = source_keys(seen.runtime)
    trained = Counter(key for step in seen.steps for key in keys(step.batch))
    skipped = seen.totals["samples_seen"] - seen.totals["samples_trained"]
    assert not trained - wanted, "a sample was trained more often than there are epochs"
    assert (wanted - trained).total() == skipped
    assert (skipped > 0) == (policy == "slipstream_released")
    assert seen.runtime.state.position == Position(2, seen.runtime.config.run.seed, 0)


@grid(always, only("fae_released", "cdlrm"), policy=["fae", "fae_released", "cdlrm"])
def test_a_run_cut_by_its_steps_trains_the_samples_that_plain_steps_would(watch: Any, policy: str) -> None:
    cut = ["run.steps=59", "data.epochs=2", "data.synthetic.samples=1500"]  # one epoch and 12 batches
    seen, plain = watch(policy, *cut), watch("hybrid", *cut)
    assert Counter(k for s in seen.steps for k in keys(s.batch)) == Counter(
        k for s in plain.steps for k in keys(s.batch)
    )
    assert 0 <= len(seen.steps) - len(plain.steps) <= 2
    assert seen.runtime.state.position == plain.runtime.state.position


def test_a_run_in_the_middle_of_a_reordered_stream_resumes_under_its_policy_only(build: Any, tmp_path: Path) -> None:
    first = build("fae_released", "run.steps=20")
    for event in first.run():
        if isinstance(event, Snapshot) and event.step == 7:
            middle = checkpoint.save(first.parts, tmp_path)
    end = checkpoint.save(first.parts, tmp_path)
    for policy in ("hybrid", "fae", "slipstream_released"):
        other = build(policy, "run.steps=20")
        checkpoint.load(other.parts, middle)
        with pytest.raises(CheckpointError, match=rf"must stay what it was.*checkpoint of step 7\), got {policy}"):
            list(other.run())
    with pytest.raises(CheckpointError, match=r"run.batch_size must stay in the middle of a stream .*, 32, got 16"):
        checkpoint.load(build("fae_released", "run.steps=20", "run.batch_size=16").parts, middle)
    with pytest.raises(CheckpointError, match="the section policy must stay in the middle of a stream"):
        checkpoint.load(build("fae_released", "run.steps=20", "policy.sampling_ratio=0.5").parts, middle)
    longer = build("fae_released", "run.steps=40")
    checkpoint.load(longer.parts, end)
    list(longer.run())
    assert (first.reports.totals()["samples_seen"], longer.reports.totals()["samples_seen"]) == (20 * 32, 40 * 32)
    assert longer.state.position.offset == 40 * 32


@grid(always, only("slipstream_released", "oracle"), policy=[*REORDERING, "cdlrm", "oracle"])
def test_a_run_made_longer_in_the_middle_first_ends_its_arranged_stretch(
    build: Any, tmp_path: Path, policy: str
) -> None:
    first = build(policy, "run.steps=20")
    for event in first.run():
        if isinstance(event, Snapshot) and event.step == 7:
            middle = checkpoint.save(first.parts, tmp_path)
    longer = build(policy, "run.steps=40")
    checkpoint.load(longer.parts, middle)
    totals = [event.steps_total for event in longer.run() if isinstance(event, Snapshot)]
    assert longer.reports.totals()["samples_seen"] == 40 * 32
    assert longer.state.position.offset == 40 * 32
    assert max(totals) >= longer.step_number == longer.steps_total


@grid(always, only("fae_released", "cdlrm"), policy=[*REORDERING, "cdlrm"])
def test_a_run_with_another_budget_resumes_in_the_middle(build: Any, tmp_path: Path, policy: str) -> None:
    """Rows are placed again for it; the stream is arranged as before, so every sample comes once."""
    first = build(policy, *EPOCHS)
    for event in first.run():
        if isinstance(event, Snapshot) and event.step == 19:
            middle = checkpoint.save(first.parts, tmp_path)
    other = build(policy, *EPOCHS, "knobs.hot_budget_bytes=900")
    checkpoint.load(other.parts, middle)
    list(other.run())
    assert other.state.position == first.state.position
    assert other.reports.totals()["samples_seen"] == first.reports.totals()["samples_seen"]
    assert 0 < other.store.hot.tier.hot_rows < first.store.hot.tier.hot_rows or policy == "fae"


@pytest.mark.slow
def test_another_number_of_batches_ahead_loses_and_repeats_no_step(build: Any, tmp_path: Path) -> None:
    """The window under way is read again with the present knobs: it may be longer or shorter than what was trained."""
    plain = build("hybrid")
    list(plain.run())
    for before, after in ((5, 2), (2, 7), (4, 1)):
        first = build("cdlrm", f"knobs.lookahead_batches={before}")
        for event in first.run():
            if isinstance(event, Snapshot) and event.step == 22:
                first.mailbox.change_knobs(lookahead_batches=after)
            if isinstance(event, Snapshot) and event.step == 23:
                middle = checkpoint.save(first.parts, tmp_path / str(before))
        again = build("cdlrm", f"knobs.lookahead_batches={after}")
        checkpoint.load(again.parts, middle)
        list(again.run())
        assert again.reports.totals()["samples_trained"] == 48 * 32
        for table in range(4):
            np.testing.assert_allclose(
                again.store.contents.export(table)[0], plain.store.contents.export(table)[0], atol=1e-11
            )


@pytest.mark.slow
def test_a_run_that_looks_ahead_resumes_where_it_was(build: Any, tmp_path: Path) -> None:
    straight = build("cdlrm")
    losses = [event.loss for event in straight.run() if isinstance(event, Snapshot)]
    first = build("cdlrm", "run.steps=21")
    list(first.run())
    second = build("cdlrm")
    checkpoint.load(second.parts, checkpoint.save(first.parts, tmp_path))
    rest = [event.loss for event in second.run() if isinstance(event, Snapshot)]
    np.testing.assert_allclose(rest, losses[21:], rtol=1e-12)


def test_a_policy_that_reorders_stays_and_one_that_looks_ahead_may_be_changed(build: Any) -> None:
    fae, ahead = build("fae"), build("cdlrm")
    with pytest.raises(ConflictError, match="policy fae reorders the stream, so it stays to the end"):
        fae.mailbox.change_knobs(policy="hotline")
    with pytest.raises(ConflictError, match="policy oracle arranges the stream, so it is chosen before a run"):
        ahead.mailbox.change_knobs(policy="oracle")
    with pytest.raises(ConflictError, match="policy xdl needs one pool for each table"):
        ahead.mailbox.change_knobs(policy="xdl")
    samples = 0
    for event in ahead.run():
        if isinstance(event, Snapshot) and event.step == 9:
            ahead.mailbox.change_knobs(policy="hotline")
    samples = ahead.reports.totals()["samples_trained"]
    assert (ahead.policy.name, ahead.step_number, samples) == ("hotline", 48, 48 * 32)
    plain = build("hybrid")
    list(plain.run())
    for table in range(4):
        np.testing.assert_allclose(ahead.store.contents.export(table)[0], plain.store.contents.export(table)[0], atol=1e-11)


@pytest.mark.parametrize("policy", ["fae", "cdlrm"])
def test_a_run_stops_in_the_middle_of_a_phase(build: Any, policy: str) -> None:
    runtime = build(policy)
    for event in runtime.run():
        if isinstance(event, Snapshot) and event.step == 5:
            runtime.hurry()
    assert runtime.step_number in (5, 6)


def test_a_budget_changed_during_a_run_that_reorders_is_kept(build: Any, watch: Any) -> None:
    runtime = build("fae", *EPOCHS)
    largest = 0
    for event in runtime.run():
        if isinstance(event, Snapshot) and event.step == 30:
            runtime.mailbox.change_knobs(hot_budget_bytes=500)
        if isinstance(event, Snapshot) and event.step > 31:
            largest = max(largest, runtime.store.hot.bytes)
            assert runtime.store.hot.tier.hot_rows <= 15
    assert 0 < largest <= 500
    assert runtime.reports.totals()["samples_trained"] == 1800


class Careless(ArrangingPolicy):
    name = "careless"

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        yield Phase("all", stream.rest(), measured=True)


def test_measuring_needs_a_record_of_movement(build: Any) -> None:
    with pytest.raises(TrainingError, match="tracks_movement of policy careless must be set"):
        list(build("hybrid", given=Careless()).run())


class FirstBatch(ArrangingPolicy):
    """Leaves out all but the first batch of the stream."""

    name = "first_batch"
    exact = False
    reorders_stream = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        seen = 0

        def later(batch: Batch) -> NDArray[np.bool_]:
            nonlocal seen
            seen += 1
            return np.full(batch.size, seen > 1)

        every = repack(stream.read(0), stream.batch_size, lambda batch: np.ones(batch.size, np.bool_), later)
        yield Phase("all", every)


def test_samples_left_out_after_the_last_batch_are_counted(build: Any) -> None:
    runtime = build("hybrid", given=FirstBatch())
    list(runtime.run())
    totals = runtime.reports.totals()
    assert (runtime.step_number, totals["samples_trained"], totals["samples_seen"]) == (1, 32, 48 * 32)
    assert runtime.steps_total == 1


def wanted_everywhere(batch: Batch) -> NDArray[np.bool_]:
    return np.ones(batch.size, np.bool_)


class TwoParts(ArrangingPolicy):
    """Has one phase of two parts, each of which leaves samples out after its last batch."""

    name = "two_parts"
    exact = False
    reorders_stream = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        parts = [islice(stream.read(0), first, None, 2) for first in (0, 1)]
        yield Phase("both", chain(*(repack(part, 32, wanted_everywhere, wanted_everywhere) for part in parts)))


def test_a_phase_may_leave_samples_out_after_each_of_its_parts(build: Any) -> None:
    runtime = build("hybrid", given=TwoParts())
    list(runtime.run())
    assert runtime.reports.totals()["samples_seen"] == 48 * 32


class Measuring(ArrangingPolicy):
    name = "measuring"
    exact = False
    tracks_movement = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        yield Phase("all", stream.rest(), np.arange(20), measured=True)


def test_a_run_may_leave_a_measured_phase_for_a_policy_that_measures_nothing(build: Any) -> None:
    runtime = build("hybrid", given=Measuring())
    for event in runtime.run():
        if isinstance(event, Snapshot) and event.step == 5:
            runtime.mailbox.change_knobs(policy="hotline")
    assert (runtime.policy.name, runtime.reports.totals()["samples_trained"]) == ("hotline", 48 * 32)


@grid(always, only("fae"), policy=REORDERING)
def test_a_run_stopped_before_its_first_step_resumes(build: Any, tmp_path: Path, policy: str) -> None:
    first, again = build(policy), build(policy)
    first.hurry()
    assert not [event for event in first.run() if isinstance(event, Snapshot)]
    checkpoint.load(again.parts, checkpoint.save(first.parts, tmp_path))
    list(again.run())
    assert again.reports.totals()["samples_seen"] == 48 * 32


def test_a_run_makes_no_more_steps_than_it_announced(build: Any, tmp_path: Path) -> None:
    """This holds however often a run resumes from its end, each time perhaps with a step more."""
    last = None
    for steps in (20, 20, 40, 45):
        runtime = build("fae_released", f"run.steps={steps}", "data.epochs=9")
        if last:
            checkpoint.load(runtime.parts, last)
            assert runtime.steps_total >= runtime.step_number
        began = runtime.step_number
        totals = [event.steps_total for event in runtime.run() if isinstance(event, Snapshot)]
        if not totals:
            assert (steps, runtime.step_number) == (20, began), "that was the end"
            continue
        last = checkpoint.save(runtime.parts, tmp_path)
        assert runtime.step_number <= min(totals)
        assert max(totals) <= runtime.step_number + 1, "a step more for each epoch that really starts"
        assert runtime.steps_total == runtime.step_number


def test_a_checkpoint_requested_at_the_last_step_is_followed_by_one_of_the_end(build: Any, tmp_path: Path) -> None:
    first, longer = build("fae_released", "run.steps=20", folder=tmp_path), build("fae_released", "run.steps=40")
    for event in first.run():
        if isinstance(event, Snapshot):
            first.mailbox.send(Command("checkpoint"))
    requested = tmp_path / f"step-{first.step_number:09d}"
    assert checkpoint.newest(tmp_path) == requested
    end = checkpoint.save(first.parts, tmp_path)
    assert end.name == f"{requested.name}.1", "the stream is over by now"
    checkpoint.load(longer.parts, end)
    list(longer.run())
    assert longer.reports.totals()["samples_seen"] == 40 * 32
