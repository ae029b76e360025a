"""Learning rates, the limit of gradients and the cadence of evaluations and checkpoints, changed while a run trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.eager import scale_down
from adaptive_rec.embedding.optimizer import schedule
from adaptive_rec.errors import ConfigError
from adaptive_rec.live.telemetry import Evaluation, Event, Snapshot
from adaptive_rec.modules.api.bag import AdaptiveEmbeddingBag
from adaptive_rec.run.training_run import TrainingRun
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.group import Group
from tests.doubles.late_streams import LateStreams
from tests.doubles.late_threads import LateThreads
from tests.settings import TINY


def build(*changes: str, late: bool = False, group: Group | None = None) -> Runtime:
    config = load_config(None, {}, [*TINY, "knobs.policy=hotline", *changes])
    return assemble(config, None, LateStreams(seed=3) if late else None, group=group)


def trained(*changes: str, late: bool = False, group: Group | None = None, **steered: Any) -> Runtime:
    """Train 60 steps; from step 30 on under the knobs `steered`."""
    runtime = build(*changes, late=late, group=group)
    for report in runtime.run():
        if isinstance(report, Snapshot) and report.step == 30 and steered and (group is None or group.rank == 0):
            runtime.mailbox.change_knobs(**steered)
    return runtime


def values(runtime: Runtime) -> list[np.ndarray]:
    tables = [runtime.store.contents.export(table)[0] for table in range(len(runtime.store.space.tables))]
    return [*tables, *(parameter.detach().numpy() for parameter in runtime.dense.parameters)]


def same(first: Runtime, second: Runtime) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(values(first), values(second), strict=True))


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_factors_are_those_of_the_configured_rates(late: bool) -> None:
    halved = trained("knobs.lr_factor=0.5", "knobs.embedding_lr_factor=0.25", late=late)
    rates = load_config(None, {}, TINY).optimizer
    configured = f"optimizer.dense_lr={rates.dense_lr / 2}", f"optimizer.embedding_lr={rates.embedding_lr / 8}"
    assert same(halved, trained(*configured, late=late))
    assert not same(halved, trained(late=late))


def test_a_factor_of_0_stops_learning_and_that_of_rows_stops_rows_alone() -> None:
    at_30 = values(trained("run.steps=31"))  # the change takes effect after the report of step 30, before the next step
    tables, dense = slice(0, 3), slice(3, None)
    still = values(trained(lr_factor=0.0))
    assert all(np.array_equal(a, b) for a, b in zip(still, at_30, strict=True))
    rows_still = values(trained(embedding_lr_factor=0.0))
    assert all(np.array_equal(a, b) for a, b in zip(rows_still[tables], at_30[tables], strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(rows_still[dense], at_30[dense], strict=True))


def test_the_schedule_goes_on_from_another_position() -> None:
    warm = "optimizer.warmup_steps=50", "knobs.schedule_offset=50"
    assert same(trained(*warm), trained())
    config = load_config(None, {}, [*TINY, "optimizer.warmup_steps=50"]).optimizer
    assert schedule(config, -7) == schedule(config, 0) == 1 / 50


def test_gradients_are_clipped_as_torch_does() -> None:
    random = torch.Generator().manual_seed(2)
    parts = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((4, 3), (5,), (2, 2))]
    other = torch.ones(3, dtype=torch.float64)
    parameters = [torch.nn.Parameter(torch.zeros_like(part)) for part in parts]
    for limit in (0.5, 1000.0):
        mine, rest = [part.clone() for part in parts], other.clone()
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        scale_down(mine, [rest], limit)
        for parameter, part in zip(parameters, mine, strict=True):
            torch.testing.assert_close(part, parameter.grad, rtol=1e-14, atol=0)
        torch.testing.assert_close(rest, other * min(1.0, limit / (float(norm) + 1e-6)), rtol=1e-14, atol=0)


def test_a_limit_that_no_gradient_reaches_changes_nothing_and_a_small_one_acts_everywhere_alike() -> None:
    free, clipped = trained(), trained("knobs.clip_norm=0.05")
    assert same(trained("knobs.clip_norm=1e6"), free)
    assert not any(np.array_equal(a, b) for a, b in zip(values(clipped), values(free), strict=True))
    others = [trained("knobs.clip_norm=0.05", "run.split=always"), trained("knobs.clip_norm=0.05", late=True)]
    others.append(LateThreads.train(2, lambda group: trained("knobs.clip_norm=0.05", group=group))[0])
    for other in others:
        for a, b in zip(values(clipped)[3:], values(other)[3:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def test_evaluations_and_checkpoints_keep_another_time(tmp_path: Path) -> None:
    config = load_config(None, {}, [*TINY, "knobs.policy=hotline", "checkpoint.every_seconds=0", "eval.every_steps=25"])
    training = TrainingRun(config, tmp_path / "run")
    reports = []
    for report in training.events():
        reports.append(report)
        if isinstance(report, Snapshot) and report.step == 30:
            training.runtime.mailbox.change_knobs(eval_every_steps=10, checkpoint_every_steps=20)
    training.finish()
    assert [each.step for each in reports if isinstance(each, Evaluation)] == [25, 40, 50, 60]
    saved = [each.step for each in reports if isinstance(each, Event) and each.kind == "saving"]
    assert saved == [40]  # the last one is written when the run finishes
    assert training.runtime.state.checkpoints.figures()["every_steps"] == 20


def test_a_loop_of_the_users_own_sets_its_own_rates() -> None:
    with pytest.raises(ConfigError, match=r"knobs\.lr_factor must be 1\.0 in a user's loop.*got 0\.5"):
        AdaptiveEmbeddingBag(10, 4, optimizer="sgd", lr=0.1, knobs={"lr_factor": 0.5})
