"""A store with rows on a device, in host memory and on a disk equals plain arrays after any sequence of operations, and so does
what its snapshots name in the log."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.cold.cascade import Cascade
from adaptive_rec.embedding.cold.memory_slots import MemorySlots
from adaptive_rec.embedding.disk import disk_snapshot, row_log
from adaptive_rec.embedding.disk.disk_snapshot import DiskSnapshot
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.reading import WantedRows, as_bytes, read_at
from adaptive_rec.embedding.disk.saved_segments import NOWHERE
from adaptive_rec.embedding.shard_arrays import ADDRESS, ROW
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import Migration
from tests.embedding.driven_store import SETTINGS, TABLES, DrivenStore
from tests.embedding.plain_rows import Rows, differences

WEIGHTS = {
    "step": 40, "stage": 12, "skip": 3, "migrate": 12, "resize": 1, "settle": 1, "place": 12, "begin": 4, "advance": 15,
    "finish": 4, "replace": 2, "clear": 1, "draw": 1,
}  # fmt: skip
STEPS = 300


class Saver(threading.Thread):
    """The thread that saves a snapshot. It stands still after each few slots, until `go` lets it on."""

    def __init__(self, store: EmbeddingStore, snapshot: DiskSnapshot) -> None:
        super().__init__(daemon=True)
        self.store, self.snapshot = store, snapshot
        self.index: list[dict[str, Any]] = []
        self.gate, self.stands = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = self.is_done = False
        self.start()
        assert self.stands.acquire(timeout=300)

    def run(self) -> None:
        try:
            with suppress(OSError):
                self.index = [dict(shard) for shard in self.store.shards(self.snapshot)]
        finally:
            self.is_done = True
            self.stands.release()

    def stand(self) -> None:
        """Called by the thread itself."""
        self.stands.release()
        self.gate.acquire()
        if self.fails:
            raise OSError("the disk is full")

    def go(self, slices: int) -> None:
        while slices and not self.is_done:
            self.gate.release()
            assert self.stands.acquire(timeout=300), "a snapshot must come to an end"
            slices -= 1


class SaverClock:
    """The module `time` of a snapshot: its thread stands still where it would sleep."""

    perf_counter = staticmethod(time.perf_counter)

    @staticmethod
    def sleep(_: float) -> None:
        thread = threading.current_thread()
        assert isinstance(thread, Saver)
        thread.stand()


class Homes(DrivenStore):
    """Its snapshots are saved by a thread, and read back where the log has them."""

    store: EmbeddingStore

    def __init__(self, folder: Path, precision: str, rule: str, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.saver: Saver | None = None
        settings = [
            f"run.precision={precision}",
            f"optimizer.embedding={rule}",
            "run.host_memory=5KiB",
            f"run.disk={folder}",
        ]
        super().__init__(load_config(None, {}, [*SETTINGS, *settings]), "late", seed)
        self.first = self.plain.copy()
        self.moment: Rows = []
        self.address_R = np.zeros(self.store.space.rows, np.uint32)
        """Where the newest snapshot that was saved has each row."""
        self.resize()

    def do(self, operation: str, seed: int) -> None:
        self.dice, self.random = random.Random(seed), np.random.default_rng(seed)
        getattr(self, operation)()

    def check(self) -> None:
        super().check()
        store, memory = self.store, self.store.cold.memory
        in_memory = memory.slot_of_row >= 0
        assert not (in_memory & (store.index.slot_of_row >= 0)).any(), "rows with two places"
        for pool, row_of_slot in enumerate(memory.row_of_slot):
            changed = row_of_slot[memory.are_changed(pool, np.arange(len(row_of_slot)))]
            assert store.index.changed_R[changed].all(), "rows in memory that no snapshot would have"
        assert store.index.changed_R[self.changed_R].all(), "changed rows that no snapshot would have"

    # Moves -----------------------------------------------------------------------------------------------------------

    def place(self) -> None:
        store, memory = self.store, self.store.cold.memory
        inside = np.flatnonzero(memory.slot_of_row >= 0)
        leaving = inside[self.random.random(len(inside)) < self.dice.choice((0.1, 0.5, 1.0))]
        entering = []
        for pool, spec in enumerate(store.space.pools):
            free = memory.capacities[pool] - len(memory.rows_of(pool)) + len(spec.select(leaving))
            outside = np.flatnonzero((memory.slot_of_row < 0) & (store.index.slot_of_row < 0))
            some = self.random.permutation(spec.select(outside))[: self.random.integers(0, free + 1)]
            entering.append(np.sort(some))
        store.place_in_memory(Migration(np.concatenate(entering), leaving))
        self.counts["to memory"] += sum(map(len, entering))
        self.counts["from memory"] += len(leaving)

    def migrate(self) -> None:
        super().migrate()
        self.counts["hot"] += self.store.hot.tier.hot_rows

    # Rows that are set -----------------------------------------------------------------------------------------------

    def replace(self) -> None:
        table, ids = self._some_ids()
        values = self.random.integers(-8, 9, (len(ids), TABLES[table].dim)) / 16
        self.store.contents.replace_rows(table, ids, values.astype(self.store.cold.types.dtype))
        self._set_plain(table, ids, values, None)

    def clear(self) -> None:
        if not self._ahead:
            table, ids = self._some_ids()
            self.store.contents.clear_rows(table, ids)
            self._set_plain(table, ids, 0, 0)

    def draw(self) -> None:
        """As a reader thread gives rows to raw ids, before a batch reads them."""
        if self._ahead:
            return
        table, ids = self._some_ids()
        self.store.contents.clear_rows(table, ids)
        self.store.contents.draw_rows(table, ids, ids, TABLES[table].rows)
        if self.dice.random() < 0.5:
            self.place()
        self.store.contents.flag_changed(table, ids)
        self.store.contents.finish_draws()
        pool, low, _ = self.store.space.table_range(table)
        self._set_plain(table, ids, self.first[pool][0][low + ids], 0)

    def _some_ids(self) -> tuple[int, Any]:
        table = self.dice.randrange(len(TABLES))
        return table, np.unique(self.random.integers(0, TABLES[table].rows, 20))

    def _set_plain(self, table: int, ids: Any, weights: Any, state: Any) -> None:
        pool, low, _ = self.store.space.table_range(table)
        self.plain.rows[pool][0][low + ids] = weights
        if state is not None:
            self.plain.rows[pool][1][low + ids] = state
        self.changed_R[self.store.space.table_first_row[table] + ids] = True

    # Snapshots -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        if self.saver is None:
            if not self.plain.is_exact:
                self.check()
            snapshot = self.store.begin_snapshot(everything=self.dice.random() < 0.2)
            self.moment, self.saving_R = self.plain.copy(), self.changed_R
            assert self.saving_R[snapshot.changed].sum() == self.saving_R.sum(), "rows that it does not have"
            self.changed_R = np.zeros_like(self.changed_R)
            self.saver = Saver(self.store, snapshot)

    def advance(self) -> None:
        if self.saver is not None:
            self.saver.go(self.dice.randint(1, 30))

    def finish(self) -> None:
        if (saver := self.saver) is None:
            return
        saver.fails = fails = self.dice.random() < 0.4
        saver.go(1 << 20)
        saver.join(60)
        assert not saver.is_alive()
        self.saver = None
        if fails:
            self.store.end_snapshot(False)
            self.changed_R |= self.saving_R
            self.counts["failed"] += 1
            return
        self.store.cold.keep_for({"this"}, written="this")
        self.store.end_snapshot(True)
        for shard in saver.index:
            self.address_R[shard[ROW]] = shard[ADDRESS]
        assert not (wrong := differences(self._read_saved(), self.moment)), f"rows of a snapshot differ: {wrong[:9]}"
        self.counts["saved"] += 1

    def _read_saved(self) -> Rows:
        found: Rows = [(weights.copy(), state.copy()) for weights, state in self.first]
        for spec, log, arrays in zip(self.store.space.pools, self.store.cold.types.logs, found, strict=True):
            addresses = self.address_R[spec.first_row : spec.end_row]
            rows = np.flatnonzero(addresses != NOWHERE)
            read_at(
                log.layout, WantedRows(addresses[rows], rows, rows), log.segments.files(), tuple(map(as_bytes, arrays))
            )
        return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 4096)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
    monkeypatch.setattr(disk_snapshot, "_SLICE", 4)
    monkeypatch.setattr(disk_snapshot, "time", SaverClock)


def drive(folder: Path, kind: tuple[str, str], seed: int, steps: int = STEPS) -> Counter[str]:
    homes, dice = Homes(folder, *kind, seed), random.Random(seed)
    try:
        for number, name in enumerate(dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps)):
            homes.do(name, dice.getrandbits(32))
            if number % 20 == 0:
                homes.check()
        homes.finish()
        homes.check()
    finally:
        if homes.saver is not None:
            homes.saver.go(1 << 20)
        homes.end_life()
    return homes.counts


@pytest.mark.parametrize("steps", [STEPS // 2, pytest.param(STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("precision", "rule"), [("float64", "sgd"), ("float32", "sgd"), ("float32", "adagrad"), ("float64", "lazy_adam")]
)
def test_rows_in_three_homes_equal_plain_arrays(
    tmp_path: Path, small_parts: None, precision: str, rule: str, steps: int
) -> None:
    counts = drive(tmp_path, (precision, rule), 3, steps)
    assert min(counts[name] for name in ("to memory", "from memory", "hot", "saved", "failed")) > 0


# Mistakes ------------------------------------------------------------------------------------------------------------


def drop_rows_that_leave_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cascade, "_write_out", lambda cold, pool, rows: cold._free(pool, rows))


def read_the_disk_alone(patch: pytest.MonkeyPatch) -> None:
    lines = MemorySlots.lines
    none = lambda memory, pool, rows: np.full(len(rows), memory.capacities[pool])  # noqa: E731
    patch.setattr(
        MemorySlots, "lines",
        lambda memory, pool, rows, filled=False: none(memory, pool, rows) if filled else lines(memory, pool, rows),
    )  # fmt: skip


def read_empty_slots(patch: pytest.MonkeyPatch) -> None:
    lines = MemorySlots.lines
    patch.setattr(MemorySlots, "lines", lambda memory, pool, rows, filled=False: lines(memory, pool, rows))


def keep_nothing_for_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskSnapshot, "keep", lambda snapshot, pool, slots: None)


def forget_what_a_failed_snapshot_had(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemorySlots, "flag_changed", lambda memory, rows: None)


def leave_hot_rows_out_of_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cascade, "_append_hot", lambda cold, hot, pool, slots, host_rows: None)


def append_nothing_of_a_batch(patch: pytest.MonkeyPatch) -> None:
    append = DiskTier.append

    def appended(tier: DiskTier, *arguments: Any) -> None:
        if not threading.current_thread().name.startswith("homing"):
            append(tier, *arguments)

    patch.setattr(DiskTier, "append", appended)


MISTAKES = [
    drop_rows_that_leave_memory, read_the_disk_alone, read_empty_slots, keep_nothing_for_a_snapshot,
    forget_what_a_failed_snapshot_had, leave_hot_rows_out_of_a_snapshot, append_nothing_of_a_batch,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    mistake(monkeypatch)

    def drives() -> Iterator[None]:
        for seed in (2, 3, 4, 5, 0, 1):  # the first one finds each of them
            drive(tmp_path / str(seed), ("float64", "sgd"), seed)
            yield

    with pytest.raises(AssertionError):
        list(drives())
