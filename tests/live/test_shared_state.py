"""Shared memory between the training thread and others: what is read is what was written, whole, whoever looks when."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.live.shared_state import CHANGES_KEPT, PlacementArrays, StateBusy, StateReader
from adaptive_rec.live.state_writer import StateWriter, Tier
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from tests.doubles.late_streams import LateStreams
from tests.kernels.reference.sketch import sketch_estimate

POOLS = (40, 25)


class World:
    """Rows of two pools in slots, moved about at random, and what a plain dictionary remembers of them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.writer = StateWriter(POOLS, 4 * 64, tables=3)
        self.reader = StateReader(self.writer.fd, self.writer.layout)
        self.slot_of_row = np.full(sum(POOLS), -1, dtype=np.int32)
        self.tiers: list[Tier] = []
        self.class_of: dict[int, str] = {}
        self.changes: dict[int, dict[str, Any]] = {}

    def move(self, step: int, capacities: list[int] | None = None) -> None:
        """Another placement: slots are dealt anew where the capacities change, some rows are exchanged where not."""
        before = self.tiers
        self.tiers = []
        self.slot_of_row[:] = -1
        for pool, rows in enumerate(POOLS):
            slots = capacities[pool] if capacities else len(before[pool].row_of_slot_H)
            if capacities:
                row_of_slot = self.random.permutation(rows)[:slots].astype(np.int64) + sum(POOLS[:pool])
            else:
                row_of_slot = before[pool].row_of_slot_H.copy()
                leave = self.random.random(slots) < 0.4
                others = np.setdiff1d(np.arange(rows) + sum(POOLS[:pool]), row_of_slot[~leave])
                row_of_slot[leave] = self.random.permutation(others)[: leave.sum()]
            row_of_slot[self.random.random(slots) < 0.1] = -1
            stale = (self.random.random(slots) < 0.3) & (row_of_slot >= 0)
            numbers = self.random.random((2, slots)).astype(np.float32)
            self.tiers.append(Tier(row_of_slot, stale, *numbers))
            hot = row_of_slot >= 0
            self.slot_of_row[row_of_slot[hot]] = np.flatnonzero(hot)
        sketch = (np.full((16, 16), step, dtype=np.uint32), np.ones(1, dtype=np.uint64), 16)
        self.writer.write_placement(step, step * 2, self.slot_of_row, self.tiers, sketch)
        self.remember(step)

    def remember(self, step: int) -> None:
        now = {}
        for tier in self.tiers:
            for row, stale in zip(tier.row_of_slot_H.tolist(), tier.stale_H.tolist(), strict=True):
                if row >= 0:
                    now[row] = "stale" if stale else "hot"
        for row in range(sum(POOLS)):
            old, new = self.class_of.get(row, "cold"), now.get(row, "cold")
            if old != new:
                self.changes[row] = {"step": step, "from": old, "to": new}
        self.class_of = now


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_sees_the_placement_the_classes_and_their_last_changes(seed: int) -> None:
    world = World(seed)
    for step, capacities in enumerate([[7, 5], None, None, [12, 3], None, [0, 25], None, [40, 0], None, None], start=1):
        world.move(step, capacities)

        def check(arrays: PlacementArrays, step: int = step) -> int:
            assert arrays.slots_plus_one.tolist() == (world.slot_of_row + 1).tolist()
            assert (arrays.step, arrays.version, arrays.sketch_unit) == (step, 2 * step, 16)
            assert arrays.capacities == [len(tier.row_of_slot_H) for tier in world.tiers]
            for pool, tier in enumerate(world.tiers):
                assert arrays.row_of_slot[pool].tolist() == tier.row_of_slot_H.tolist()
                assert arrays.stale[pool].tolist() == tier.stale_H.tolist()
                assert arrays.estimate[pool].tolist() == tier.estimate_H.tolist()
                assert arrays.movement[pool].tolist() == tier.movement_H.tolist()
            assert arrays.sketch_counters.tolist() == np.full((16, 16), step).tolist()
            return arrays.version

        assert world.reader.placement(check) == 2 * step


def last_change(arrays: PlacementArrays, row: int) -> Any:
    newest = arrays.changes_of(row, 5)
    assert newest == sorted(newest, key=lambda change: -change["step"])
    assert all(later["from"] == earlier["to"] for later, earlier in pairwise(newest))
    return newest[0] if newest else None


def test_the_ring_knows_the_last_change_of_each_row() -> None:
    world = World(9)
    for step in range(1, 40):
        world.move(step, [[12, 9], [5, 25], [40, 0]][step // 10 % 3] if step % 10 == 1 else None)
        found = {
            row: world.reader.placement(lambda arrays, row=row: last_change(arrays, row)) for row in range(sum(POOLS))
        }
        assert {row: change for row, change in found.items() if change} == world.changes


def test_the_ring_forgets_the_oldest_changes() -> None:
    writer = StateWriter([2 * CHANGES_KEPT], 1, tables=1)
    reader = StateReader(writer.fd, writer.layout)
    slot_of_row = np.arange(2 * CHANGES_KEPT, dtype=np.int32)
    for step, slots in enumerate((10, 2 * CHANGES_KEPT), start=1):
        tier = Tier(
            np.arange(slots),
            np.zeros(slots, dtype=bool),
            np.zeros(slots, dtype=np.float32),
            np.zeros(slots, np.float32),
        )
        writer.write_placement(step, step, slot_of_row, [tier], None)
    assert reader.placement(lambda arrays: last_change(arrays, 3)) is None, "its entry was written over"
    newest = reader.placement(lambda arrays: last_change(arrays, 2 * CHANGES_KEPT - 1))
    assert newest == {"step": 2, "from": "cold", "to": "hot"}
    assert reader.placement(lambda arrays: last_change(arrays, -5)) is None


def test_a_board_is_replaced_whole() -> None:
    writer = StateWriter([4], 1, tables=1)
    reader = StateReader(writer.fd, writer.layout)
    assert reader.board() == {}
    versions = {reader.board_version()}
    for board in ({"phase": "training", "step": 3}, {"a": "ü" * 500}, {"b": None}):
        writer.write_board(board)
        assert reader.board() == board
        versions.add(reader.board_version())
    assert len(versions) == 4
    with pytest.raises(ValueError, match="must fit into"):
        writer.write_board({"text": "x" * (1 << 19)})
    with pytest.raises(ValueError, match="JSON"):
        writer.write_board({"loss": float("inf")})
    assert reader.board() == {"b": None}


def test_a_reader_gives_up_on_a_placement_that_never_holds_still() -> None:
    writer = StateWriter([4], 1, tables=1)
    reader = StateReader(writer.fd, writer.layout)
    with writer._changing("placement_number"), pytest.raises(StateBusy, match=r"0\.05 s"):
        reader.placement(lambda arrays: arrays.version, deadline_seconds=0.05)
    with pytest.raises(ZeroDivisionError):
        reader.placement(lambda arrays: 1 // 0)


READER = """
    import json, sys, time
    from adaptive_rec.live.shared_state import StateBusy, StateReader

    def patiently(read):
        while True:
            try:
                return read()
            except StateBusy:  # the writer was kept from a processor in the middle of a write
                continue

    reader = StateReader(int(sys.argv[1]), json.loads(sys.argv[2]))
    steps, boards, last = set(), set(), (0, 0)
    end = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end or min(len(steps), len(boards)) <= 20:
        def read(arrays):
            step = arrays.step
            assert arrays.version == 2 * step
            hot = arrays.row_of_slot[0]
            assert set(hot.tolist()) == {step % 50}, "all slots were written for one step"
            assert set((arrays.estimate[0] - step).tolist()) == {0.0}
            assert arrays.slots_plus_one[step % 50] > 0
            return step
        step = patiently(lambda: reader.placement(read)) if reader.pulse()[0] else 0
        board = patiently(reader.board)
        if board:
            assert set(board["many"]) == {board["step"]}
        now = (step, board.get("step", 0))
        assert now[0] >= last[0] and now[1] >= last[1], "time does not run backwards"
        last = now
        steps.add(step); boards.add(now[1])
    print(len(steps), len(boards))
"""


def test_another_process_never_reads_half_of_anything() -> None:
    """A writer that does nothing but write against a reader that checks everything it reads, for a second and a half, or until
    it has seen more than a handful of writes."""
    slots = 3000
    writer = StateWriter([slots], 1, tables=1)
    command = [sys.executable, "-c", textwrap.dedent(READER), str(writer.fd), _json(writer.layout), "1.5"]
    process = subprocess.Popen(command, pass_fds=[writer.fd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    step, stop = 0, threading.Event()
    threading.Thread(target=lambda: (process.wait(), stop.set()), daemon=True).start()
    while not stop.is_set():
        step += 1
        rows = np.full(slots, step % 50, dtype=np.int64)
        numbers = np.full(slots, step, dtype=np.float32)
        slot_of_row = np.full(slots, -1, dtype=np.int32)
        slot_of_row[step % 50] = 0
        writer.write_placement(step, 2 * step, slot_of_row, [Tier(rows, np.zeros(slots, bool), numbers, numbers)], None)
        writer.write_board({"step": step, "many": [step] * 300})
        writer.pulse(step)
        stop.wait(0.0005)
    out, error = process.communicate()
    assert process.returncode == 0, error
    steps, boards = map(int, out.split())
    assert min(steps, boards) > 20


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


SETTINGS = [
    "knobs.policy=slipstream", "run.device=cpu", "run.threads=1", "run.batch_size=32", "run.steps=40",
    "data.table_rows=[300, 40, 9]", "data.dense_features=2", "data.synthetic.samples=4000", "model.embedding_dim=4",
    "model.bottom_mlp=[8]", "model.top_mlp=[8]", "knobs.reclassify_every=10", "knobs.report_every=10", "knobs.probe_ratio=1.0",
    "knobs.hot_budget_bytes=6000", "knobs.sample_ratio=1.0",
]  # fmt: skip


def test_every_board_has_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is then, not as it was when the window ended."""
    peaks = iter(range(1, 10_000))
    monkeypatch.setattr(LateStreams, "peak_bytes", lambda _: next(peaks))
    runtime = assemble(load_config(None, {}, [*SETTINGS, "knobs.report_every=2"]), None, LateStreams(seed=1))
    writer = runtime.publisher.open()
    reader = StateReader(writer.fd, writer.layout)
    told = []
    for report in runtime.run():
        if isinstance(report, Snapshot):
            placed = reader.board()["placement"]
            told.append((placed["staging_bytes"], placed["peak_bytes"]))
    assert len(told) >= 20
    assert told == sorted(told, key=lambda pair: pair[1])
    assert len({peak for _, peak in told}) == len(told), "refreshed with each report"
    assert max(staging for staging, _ in told) > 0
    runtime.publisher.board()
    assert reader.board()["placement"]["staging_bytes"] == runtime.store.path.staging_bytes
    runtime.publisher.close()


def test_a_run_publishes_what_it_is() -> None:
    runtime = assemble(load_config(None, {}, SETTINGS))
    writer = runtime.publisher.open()
    reader = StateReader(writer.fd, writer.layout)
    assert reader.board()["phase"] == "starting"
    for report in runtime.run():
        if isinstance(report, Snapshot):
            board = reader.board()
            assert (board["phase"], board["step"], board["steps_total"]) == ("training", report.step, 40)
            assert board["snapshot"]["tables"]["lookups"] == [report.step * 32] * 3
            assert sum(board["snapshot"]["tables"]["hot_rows"]) == report.hot_rows > 0
            assert sum(board["snapshot"]["tables"]["stale_rows"]) == report.stale_rows
            assert sum(board["snapshot"]["tables"]["lookups_hot"]) == report.totals["lookups_hot"]
            assert reader.pulse()[0] == report.step
            assert (board["placement"]["staging_bytes"], board["placement"]["peak_bytes"]) == (0, 0), "on a CPU"

            def check(arrays: PlacementArrays) -> None:
                device = runtime.store.hot.tier
                assert (arrays.slots_plus_one - 1).tolist() == runtime.store.index.placement.slot_of_row.tolist()
                assert arrays.stale[0].tolist() == device.stale[0].tolist()
                hot = np.flatnonzero(arrays.row_of_slot[0] >= 0)
                rows = arrays.row_of_slot[0][hot]
                lookups = np.empty(len(rows))
                sketch_estimate(arrays.sketch_counters, rows, arrays.sketch_seeds[0], arrays.sketch_unit, lookups)
                # Fading rounds each cell of the sketch up or down.
                np.testing.assert_allclose(lookups, arrays.estimate[0][hot], atol=0.2)

            reader.placement(check)
    assert reader.board()["phase"] == "finishing"
    movement = reader.placement(lambda arrays: arrays.movement[0].copy())
    assert np.isfinite(movement).sum() > 10
    runtime.publisher.close()
    assert reader.board()["phase"] == "finishing", "what was read stays readable"
