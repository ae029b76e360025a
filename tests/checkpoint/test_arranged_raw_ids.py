"""Runs on raw ids under policies that arrange the stream, stopped anywhere: what is read again counts and admits nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows
from tests.checkpoint.contents import contents
from tests.matrix import always, each, grid
from tests.policies.test_stop_while_reading import stopped_at
from tests.runtime.test_raw_ids_arranged import (
    AGEING,
    ORDERED,
    REORDERING,
    assert_same_rows,
    losses,
    raw_ids_of,
    run_of,
    soon,
)

__all__ = ["soon"]


def resumed(policy: str, folder: Path, stop: int, settings: Sequence[str], at: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return what a run has in the end that was saved after a step and resumed."""
    folder.mkdir()
    first = run_of(policy, folder / "first", *settings)
    losses(first, at, stop)
    saved = checkpoint.save(first.parts, folder / "saved")
    changed = [f"knobs.{name}={getattr(first.knobs, name)}" for step in at if step < stop for name in at[step]]
    second = run_of(policy, folder / "second", *settings, *changed)
    checkpoint.load(second.parts, saved)
    losses(second, at)
    return contents(checkpoint.save(second.parts, folder / "end"))


@pytest.mark.parametrize(
    ("policy", "settings", "at", "stops"),
    [
        ("cdlrm", ["knobs.lookahead_batches=3"], {9: {"lookahead_batches": 12}, 25: {"lookahead_batches": 2}}, (1, 12, 30)),
        ("oracle", ["data.keep_evicted=30", *AGEING], {}, (61,)),
        ("fae", [], {}, (1, 14, 20)),
        ("slipstream_released", [], {}, (9, 17)),
    ],
)  # fmt: skip
def test_a_resumed_run_has_each_bit_of_the_unbroken_one(
    tmp_path: Path, soon: None, policy: str, settings: list[str], at: dict[int, dict[str, Any]], stops: tuple[int, ...]
) -> None:
    """At the start, in windows and at their ends, while ids wait to leave, and where a knob had changed in the window before."""
    unbroken = run_of(policy, tmp_path / "unbroken", *settings)
    losses(unbroken, at)
    wanted = contents(checkpoint.save(unbroken.parts, tmp_path / "wanted"))
    for stop in stops:
        assert stop < unbroken.step_number
        assert resumed(policy, tmp_path / str(stop), stop, settings, at) == wanted, f"stopped after step {stop}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*ORDERED, *REORDERING])
@pytest.mark.parametrize("settings", [[], ["run.host_memory=1MiB"]], ids=["memory", "disk"])
def test_a_run_resumed_after_any_step_has_each_bit_of_the_unbroken_one(tmp_path: Path, policy: str, settings: list[str]) -> None:
    unbroken = run_of(policy, tmp_path / "unbroken", *settings)
    losses(unbroken)
    wanted = contents(checkpoint.save(unbroken.parts, tmp_path / "wanted"))
    for stop in range(1, unbroken.step_number):
        assert resumed(policy, tmp_path / str(stop), stop, settings, {}) == wanted, f"stopped after step {stop}"


@grid(always, each, policy=[*ORDERED, *REORDERING], read=[1, 6, 13, 14, 15, 22])
def test_a_stop_while_the_stream_is_read_counts_and_admits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, read: int
) -> None:
    """Within the pass that gives ids their rows, which reads 14 batches, right behind it, and in the reads of the policy."""
    whole = run_of(policy, tmp_path / "whole")
    losses(whole)
    first = run_of(policy, tmp_path / "first")
    assert stopped_at(first, read, monkeypatch)
    if policy in REORDERING and read < 14:
        assert first.step_number == 0
        assert 0 < raw_ids_of(first).keys.settled == read
    again = run_of(policy, tmp_path / "again")
    checkpoint.load(again.parts, checkpoint.save(first.parts, tmp_path / "saved"))
    losses(again)
    assert raw_ids_of(again).counts() == raw_ids_of(whole).counts()
    assert float(again.dense.loss_sum) == float(whole.dense.loss_sum)
    assert_same_rows(again, whole)


def test_rows_that_were_placed_ahead_are_drawn_again_where_batches_are_cut_otherwise(tmp_path: Path) -> None:
    """Ids may get other rows then. Learning rates are too small to move a row, so each has its id's first value."""
    settings = ["knobs.lookahead_batches=20", "knobs.admit_after=3", "optimizer.embedding_lr=1e-300"]
    first, second = run_of("cdlrm", tmp_path / "first", *settings), run_of("cdlrm", tmp_path, *settings, "run.batch_size=12")
    losses(first, stop=7)
    checkpoint.load(second.parts, checkpoint.save(first.parts, tmp_path / "saved"))
    losses(second)
    raw_ids = raw_ids_of(second)
    for table, of_keys in enumerate(raw_ids.origin.tables):
        ids, keys = raw_ids.keys.keys_of(table)
        weights = second.store.contents.export(table)[0][ids]
        drawn = np.zeros_like(weights)
        fill_rows(np.uint64(second.config.run.seed), table, first_bound(of_keys.rows), keys, drawn)
        np.testing.assert_array_equal(weights, drawn)


def test_a_run_that_gets_more_epochs_reads_only_what_is_new(tmp_path: Path) -> None:
    first = run_of("fae", tmp_path, "data.epochs=1")
    losses(first)
    assert raw_ids_of(first).keys.settled == 14
    second = run_of("fae", tmp_path)
    checkpoint.load(second.parts, checkpoint.save(first.parts, tmp_path / "saved"))
    losses(second)
    assert second.reports.totals()["samples_seen"] == 220
    assert raw_ids_of(second).counts()["lookups"] == 2 * 220
