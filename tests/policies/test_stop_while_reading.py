"""A stop that comes while an arranging policy gathers a batch: the resumed run equals the one that nobody stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch, Position
from adaptive_rec.policy.find import BUILT_IN, load_policy
from adaptive_rec.runtime.loop import Runtime
from tests.matrix import always, grid, only
from tests.policies.settings import EPOCHS

ARRANGING = tuple(name for name in BUILT_IN if load_policy(name).arranges_stream)


def stopped_at(runtime: Runtime, read: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train, request a stop when the batch of this number is read from the source; return whether that came to pass."""
    plain, done = type(runtime.source).train_batches, 0

    def batches(source: Any, position: Position, batch_size: int) -> Iterator[Batch]:
        nonlocal done
        for batch in plain(source, position, batch_size):
            done += 1
            if done == read:
                runtime.hurry()
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(type(runtime.source), "train_batches", batches)
        list(runtime.run())
    return done >= read


def result(runtime: Runtime) -> tuple[Any, ...]:
    totals = runtime.reports.totals()
    return runtime.step_number, totals["samples_seen"], totals["samples_trained"], totals["row_updates"], runtime.state.position


@pytest.fixture(params=[17, pytest.param(7, marks=pytest.mark.slow)])
def apart(request: pytest.FixtureRequest) -> int:
    """Batches between one stop and the next."""
    return request.param


@grid(always, only("fae_released"), policy=ARRANGING, depth=[0, 3])
def test_a_stop_between_the_parts_of_a_batch_trains_no_part_of_it(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, depth: int, apart: int
) -> None:
    settings = (*EPOCHS, "data.epochs=1", f"knobs.prefetch_depth={depth}")
    whole = build(policy, *settings)
    list(whole.run())
    for read in range(3, 400, apart):
        first = build(policy, *settings)
        if not stopped_at(first, read, monkeypatch):
            break
        again = build(policy, *settings)
        checkpoint.load(again.parts, checkpoint.save(first.parts, tmp_path / str(read)))
        list(again.run())
        assert result(again) == result(whole), f"stopped at batch {read} of those that are read"
        assert float(again.dense.loss_sum) == float(whole.dense.loss_sum)
    assert read > 10
