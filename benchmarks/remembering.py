"""How long popularity should be remembered where rows that leave memory are written to a disk: rows read and written a step.

Nothing is trained: batches of Kaggle's shape (Zipf 1.05) go through the tracker's sketch, and the guard rails choose the rows in
memory at the end of each window of 100 steps. What is counted is what a disk would have to do, the log's own memory left aside.

    python -m benchmarks.remembering --memory 10% --steps 4000
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Position
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.reclassify.observer import SKETCH_LIMIT_BYTES
from adaptive_rec.reclassify.window import lasting_decay
from adaptive_rec.tracking.count_min import CountMinSketch, width_for

WINDOW, BATCH, ROW_BYTES = 100, 2048, 68
SETTINGS = ["data.synthetic.popular_ratio=0", "data.source=synthetic", f"run.batch_size={BATCH}"]
RULES = (
    ("decay 0.6, hysteresis 0.1", 0.6, 0.1),
    ("auto, hysteresis 0.1", None, 0.1),
    ("auto, hysteresis 1", None, 1.0),
)
"""What is compared: the factor of a window's counts, None for `knobs.decay=auto`, and the hysteresis."""


@dataclass
class Memory:
    """The rows in memory under one rule (R rows in all), and what it would read and write."""

    name: str
    decay: float | None
    hysteresis: float
    slots: int
    slot_R: NDArray[np.int32]
    sketch: CountMinSketch
    empty_R: NDArray[np.bool_]
    """Rows that have a slot and wait for their first batch."""
    met: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    cold_met: int = 0
    read: int = 0
    written: int = 0

    def step(self, row_U: NDArray[np.int64], lookups_U: NDArray[np.int64]) -> None:
        is_hot = self.slot_R[row_U] >= 0
        cold, waiting = row_U[~is_hot], row_U[is_hot & self.empty_R[row_U]]
        self.cold_met += len(cold)
        self.read += len(cold) + len(waiting)
        self.written += len(cold)
        self.empty_R[waiting] = False
        self.sketch.add(row_U, lookups_U)

    def end_window(self, seen: NDArray[np.int64]) -> None:
        met = np.union1d(seen, self.met)
        met = met[self.slot_R[met] < 0]
        hot = np.flatnonzero(self.slot_R >= 0)
        scores = self.sketch.estimate(met), self.sketch.estimate(hot)
        moved = plan_migration(
            met, scores[0], hot, scores[1], self.slot_R, self.slots, self.hysteresis, (64 << 20) // ROW_BYTES
        )
        self.written += int(np.count_nonzero(~self.empty_R[moved.demote]))
        self.slot_R[moved.demote], self.slot_R[moved.promote] = -1, 0
        self.empty_R[moved.demote], self.empty_R[moved.promote] = False, True
        self.met = np.union1d(np.setdiff1d(met, moved.promote, assume_unique=True), moved.demote)[-4 * self.slots :]
        self.sketch.decay(self.decay or lasting_decay(self.cold_met, self.slots))
        self.cold_met = 0

    def take_counts(self) -> tuple[int, int]:
        """Return the rows read and written since the last call."""
        counts = self.read, self.written
        self.read = self.written = 0
        return counts


def batches(source: SyntheticSource, steps: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the distinct rows of batches, by their joint numbers, and their lookups."""
    first = np.concatenate([[0], np.cumsum([table.rows for table in source.tables])])
    first_F = first[[feature.table for feature in source.features]]
    for _, batch in zip(range(steps), source.train_batches(Position(0, 1, 0), BATCH), strict=False):
        yield np.unique(batch.ids_N.reshape(BATCH, -1) + first_F, return_counts=True)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--memory", default="10%", help="part of the rows that has room in memory")
    parse.add_argument("--steps", type=int, default=4000)
    parse.add_argument("--scale", type=float, default=1.0, help="part of each table's rows")
    args = parse.parse_args()
    samples = f"data.synthetic.samples={BATCH * (args.steps + 1)}"
    source = SyntheticSource(load_config("criteo_kaggle", {}, [*SETTINGS, samples, f"data.scale={args.scale}"]))
    rows = sum(table.rows for table in source.tables)
    slots = int(rows * float(args.memory.rstrip("%")) / 100)
    width = width_for(slots, rows, SKETCH_LIMIT_BYTES)
    memories = [
        Memory(
            name,
            decay,
            hysteresis,
            slots,
            np.full(rows, -1, np.int32),
            CountMinSketch(width, seed=1),
            np.zeros(rows, np.bool_),
        )
        for name, decay, hysteresis in RULES
    ]
    print(f"{rows:,} rows, {slots:,} in memory; rows read and written a step, mean of the last 500 steps")
    seen: list[NDArray[np.int64]] = []
    for number, (row_U, lookups_U) in enumerate(batches(source, args.steps), start=1):
        seen.append(row_U)
        for memory in memories:
            memory.step(row_U, lookups_U)
        if number % WINDOW:
            continue
        window, seen = np.unique(np.concatenate(seen)), []
        for memory in memories:
            memory.end_window(window)
        if number % 1000 == 500:
            for memory in memories:
                memory.take_counts()
        if number % 1000 == 0:
            for memory in memories:
                read, written = (count / 500 for count in memory.take_counts())
                print(f"step {number}: {memory.name}: {read:,.0f} read, {written:,.0f} written", flush=True)


if __name__ == "__main__":
    main()
