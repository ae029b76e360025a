"""Several ranks under policies that look at the batches to come, or arrange them anew: each reads whole batches, and places rows
of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.live.mailbox import Command
from adaptive_rec.live.telemetry import Event, Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.group import Group
from tests.doubles.late_threads import LateThreads
from tests.matrix import always, grid
from tests.runtime.test_processes import config
from tests.runtime.test_resumed_ranks import tables_of, trained


@pytest.mark.parametrize("policy", ["oracle", *(pytest.param(each, marks=pytest.mark.slow) for each in ("cdlrm", "xdl"))])
def test_a_policy_that_reads_ahead_goes_on_in_another_number_of_ranks(policy: str, tmp_path: Path) -> None:
    """In the middle of a window, whose rows another number of ranks places anew."""
    changes = [f"knobs.policy={policy}", "knobs.reclassify_every=7", "knobs.lookahead_batches=5", "knobs.hot_budget_bytes=700"]
    whole = trained(tmp_path / "whole", 1, *changes, "run.steps=24")
    trained(tmp_path / "run", 2, *changes, "run.steps=9")
    for ranks, steps in ((3, 17), (1, 24)):
        summary = trained(tmp_path / "run", ranks, *changes, f"run.steps={steps}", resume=True)
    assert summary["samples_seen"] == whole["samples_seen"]
    assert summary["train_logloss"] == pytest.approx(whole["train_logloss"], rel=1e-12)
    for one, other in zip(tables_of(tmp_path / "whole"), tables_of(tmp_path / "run"), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


COUNTS = ("steps", "samples_seen", "samples_trained", "row_updates")
ARRANGED = ["run.steps=0", "data.epochs=2", "data.synthetic.samples=300", "policy.sampling_ratio=0.5", "optimizer.embedding=sgd"]


@grid(always, lambda cases: cases[:1], policy=["slipstream_released", "fae"], ranks=[2, 3])
def test_ranks_that_reorder_the_stream_arrange_it_as_one_process_with_the_budgets_of_all(
    policy: str, ranks: int, tmp_path: Path
) -> None:
    """Each rank sees the movement of the hot rows of all, and goes on after a stop within a phase."""

    def train(name: str, ranks: int, **how: Any) -> dict[str, Any]:
        budget = f"knobs.hot_budget_bytes={24_000 // ranks}"
        return trained(tmp_path / name, ranks, f"knobs.policy={policy}", budget, *ARRANGED, **how)

    alone, unbroken, stopped = train("alone", 1), train("unbroken", ranks), train("stopped", ranks, until=11)
    assert (alone["samples_trained"] < alone["samples_seen"]) == (policy == "slipstream_released")
    assert 0 < stopped["steps"] < unbroken["steps"]
    for several in (unbroken, train("stopped", ranks, resume=True)):
        assert [several[figure] for figure in COUNTS] == [alone[figure] for figure in COUNTS]
        assert several["train_logloss"] == pytest.approx(alone["train_logloss"], rel=1e-12)
    for one, other, again in zip(*(tables_of(tmp_path / name) for name in ("alone", "unbroken", "stopped")), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
        np.testing.assert_array_equal(other, again)


@pytest.mark.parametrize("how", ["stop", "signal"])
def test_ranks_that_read_ahead_stop_together(how: str) -> None:
    """Each reads on as far as batches are under way, however far it is at the moment of the stop: none waits for another."""

    def of_rank(group: Group) -> tuple[int, list[str]]:
        changes = ["knobs.policy=cdlrm", "knobs.lookahead_batches=3", "knobs.prefetch_depth=7", "run.steps=0"]
        runtime = assemble(config(*changes), group=group)
        events = []
        for report in runtime.run():
            if isinstance(report, Event):
                events.append(f"{report.step} {report.kind} {report.text}")
            if isinstance(report, Snapshot) and report.step == 20:
                if how == "signal" and group.rank == 1:
                    runtime.hurry()
                elif how == "stop" and group.rank == 0:
                    runtime.mailbox.send(Command("stop", {}))
        return runtime.step_number, events

    (steps, events), *others = LateThreads.train(3, of_rank, seed=7)
    assert 20 <= steps < 24
    assert all(each == (steps, events) for each in others)
    assert any("rows became hot" in text for text in events)
