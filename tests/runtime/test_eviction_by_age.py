"""Ids that lose their rows as nobody has looked them up for long: beside a plain record of lookups, on a stream that drifts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec import checkpoint
from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.raw import raw_ids as raw
from adaptive_rec.data.raw.eviction import AGED_PART
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.live.telemetry import Event
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.loop import Runtime
from tests.runtime import test_eviction_ranks
from tests.runtime.conftest import Pace
from tests.runtime.test_eviction import ReplacedIds, outcome, run_of, trained

AFTER, WINDOW = 30, 20


def by_age(pace: Pace) -> list[str]:
    return [*pace.settings(330), "knobs.evict_ratio=0", f"knobs.evict_after={pace(AFTER)}"]


class RoomyIds(ReplacedIds):
    """Ids that are others every 80 batches, in tables that have room for all of them."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.tables = tuple(replace(table, rows=2000) for table in self.tables)


@pytest.fixture(autouse=True)
def roomy_ids(pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplacedIds, "every", pace(ReplacedIds.every))
    monkeypatch.setattr(assembling, "open_source", lambda config, **_: RawIds(RoomyIds(config), config))


def keys_of(runtime: Runtime, table: int) -> set[int]:
    assert runtime.state.input.raw_ids is not None
    return set(runtime.state.input.raw_ids.keys.keys_of(table)[1].tolist())


def lookups(batch: Batch, tables: int) -> list[list[int]]:
    """Return the keys of each feature, which has a table of its own."""
    bags = [batch.ids_N[first:end] for first, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    return [np.concatenate(bags[table::tables]).tolist() for table in range(tables)]


def test_ids_leave_by_the_age_of_a_plain_record_whether_their_table_is_full_or_not(tmp_path: Path, pace: Pace) -> None:
    runtime, after, window = run_of(tmp_path, *by_age(pace)), pace(AFTER), pace(WINDOW)
    raw_ids = runtime.state.input.raw_ids
    assert raw_ids is not None
    last: dict[tuple[int, int], int] = {}
    chosen: dict[tuple[int, int], int] = {}
    choose, stream = (
        raw_ids._eviction.choose,
        raw_ids.key_batches(runtime.state.position, runtime.config.run.batch_size),
    )

    def choosing(*args: Any) -> Any:
        leaving = choose(*args)
        for table, key in zip(leaving.table_L.tolist(), leaving.key_L.tolist(), strict=True):
            age = runtime.step_number - last[table, key]
            assert after <= age < 2 * after + 2 * window
            chosen[table, key] = runtime.step_number
        assert leaving.aged_L.all()
        return leaving

    raw_ids._eviction.choose = choosing  # type: ignore[method-assign]
    tables, taken = len(runtime.source.tables), 0
    events: list[Event] = []
    for report in runtime.run():
        while taken < runtime.step_number:
            taken += 1
            for table, keys in enumerate(lookups(next(stream), tables)):
                last.update({(table, key): taken for key in keys})
        if isinstance(report, Event) and report.kind == "evicted":
            events.append(report)
    counts, steps = raw_ids.counts(), runtime.step_number
    assert counts["evicted"] == counts["evicted_by_age"] > 200
    assert counts["refused"] == 0, "no table was ever full"
    assert sum(sum(event.details["by_age"].values()) for event in events) == len(chosen) >= counts["evicted"]
    assert f"not looked up for {after} steps" in events[0].text
    old = {name for name, at in last.items() if steps - at > 2 * after + window + raw.LATER}
    assert len(old) > 200
    assert not any(key in keys_of(runtime, table) for table, key in old)
    young = {name for name, at in last.items() if steps - at <= after and name not in chosen}
    assert all(key in keys_of(runtime, table) for table, key in young)


def test_at_most_a_part_of_a_table_leaves_in_a_window(tmp_path: Path, pace: Pace) -> None:
    runtime = run_of(tmp_path, *pace.settings(60), "knobs.evict_ratio=0", "knobs.evict_after=1")
    most = 2000 * AGED_PART
    found = [report.details for report in runtime.run() if isinstance(report, Event) and report.kind == "evicted"]
    assert max(max(each["by_age"].values()) for each in found) <= most


@pytest.mark.parametrize("windows", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_all_ids_have_their_turn_in_the_windows_of_so_many_steps(tmp_path: Path, pace: Pace, windows: int) -> None:
    settings = "knobs.evict_ratio=0", f"knobs.evict_after={windows * pace(WINDOW)}"
    runtime = run_of(tmp_path, *pace.settings(2 * windows * WINDOW), *settings)
    raw_ids = runtime.state.input.raw_ids
    assert raw_ids is not None
    choose, turns = raw_ids._eviction.choose, []

    def choosing(*args: Any) -> Any:
        leaving = choose(*args)
        turns.append(raw_ids._eviction._hand == 0)
        return leaving

    raw_ids._eviction.choose = choosing  # type: ignore[method-assign]
    list(runtime.run())
    assert turns == [*[False] * (windows - 1), True] * 2


@pytest.mark.parametrize("policy", [pytest.param("device_only", marks=pytest.mark.slow), "xdl"])
def test_the_same_ids_leave_however_far_is_read_ahead_and_after_a_resume(tmp_path: Path, pace: Pace, policy: str) -> None:
    settings = [*by_age(pace), f"knobs.policy={policy}", "knobs.hot_budget_bytes=2MiB"]
    expected = outcome(trained(tmp_path, *settings, "knobs.prefetch_depth=0"))
    assert expected[1]["evicted_by_age"] > 200
    folder, step = None, 0
    for stop in (1, pace(57), pace(150), pace(209), None):
        runtime = run_of(tmp_path, *settings, "knobs.prefetch_depth=9")
        if folder is not None:
            checkpoint.load(runtime.parts, folder)
        assert runtime.step_number == step
        reports = runtime.run()
        while stop is None or runtime.step_number < stop:
            if next(reports, None) is None:
                break
        if stop is not None:
            folder, step = checkpoint.save(runtime.parts, tmp_path / "checkpoints"), stop
            reports.close()
    assert outcome(runtime) == expected


def test_ages_begin_when_the_knob_is_set_and_end_with_it(tmp_path: Path, pace: Pace) -> None:
    begin, end = pace(100), pace(250)

    def changed(depth: int) -> Any:
        runtime = run_of(tmp_path, *by_age(pace), "knobs.evict_after=0", f"knobs.prefetch_depth={depth}")
        told = []
        for report in runtime.run():
            if isinstance(report, Event) and report.kind == "evicted":
                told.append(report.step)
            if runtime.step_number in (begin, end):
                after = pace(AFTER) if runtime.step_number == begin else 0
                if runtime.knobs.evict_after != after:
                    runtime.mailbox.change_knobs(evict_after=after)
        return told, outcome(runtime)

    told, found = changed(0)
    assert told[0] == pace(160), "ages begin at the end of the window, at step 120"
    assert max(told) <= pace(260)
    assert changed(9) == (told, found)


def test_no_id_leaves_for_both_reasons(tmp_path: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "open_source", lambda config, **_: RawIds(ReplacedIds(config), config))
    runtime = run_of(tmp_path, *pace.settings(200), "knobs.evict_ratio=0.5", f"knobs.evict_after={pace(AFTER)}")
    raw_ids = runtime.state.input.raw_ids
    assert raw_ids is not None
    reasons, choose = set(), raw_ids._eviction.choose

    def choosing(*args: Any) -> Any:
        leaving = choose(*args)
        assert len(np.unique(leaving.table_L << 32 | leaving.id_L)) == len(leaving.id_L)
        reasons.update(leaving.aged_L.tolist())
        return leaving

    raw_ids._eviction.choose = choosing  # type: ignore[method-assign]
    list(runtime.run())
    assert reasons == {False, True}


def test_several_processes_let_the_ids_leave_that_one_process_lets_leave(tmp_path: Path, pace: Pace) -> None:
    (_, counts, keys), _ = test_eviction_ranks.trained(tmp_path / "one", 1, *by_age(pace))
    two = test_eviction_ranks.trained(tmp_path / "two", 2, *by_age(pace), "knobs.prefetch_depth=9", stops=(pace(150),))
    assert counts["evicted_by_age"] > 200
    assert two[0][1:] == (counts, keys)
