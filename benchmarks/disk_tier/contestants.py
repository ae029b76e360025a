"""Runs of ours, with all rows in memory or with cold rows on a disk, driven as the command line drives them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.tree import ON_DISK, Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import SLOT_RECORD_BYTES, all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.run_options import RunOptions
from benchmarks.common.contestants import Driven
from benchmarks.common.shapes import SHAPES, configure
from benchmarks.disk_tier.first_rows import first_rows, sync_files
from benchmarks.disk_tier.plan import ADVISED, BAGS, IN_MEMORY, RIVALS, ROCKS, Setup
from benchmarks.disk_tier.rivals import MappedArrays, MappedBags, Rival


def configured(setup: Setup) -> Config:
    """Return a contestant's configuration. In memory rows have no policy, which costs nothing there."""
    settings = ["run.device=cpu", "knobs.report_every=1", *setup.settings]
    if setup.name == IN_MEMORY:
        settings.append("knobs.policy=hybrid")
    return configure(SHAPES[setup.shape], setup.batch_size, tuple(settings), setup.data or None)


def rows_bytes(config: Config, source: Source) -> int:
    """Return the bytes of all rows and their optimizer state."""
    space = RowSpace.of(source.tables, source.features)
    return all_rows_bytes(space, row_bytes(space, RowRule.of(config.optimizer), np.dtype(np.float32).itemsize, False))


class Ours(Driven):
    """A training run of ours."""

    def __init__(self, config: Config, source: Source, folder: Path | None, memory_bytes: int) -> None:
        """`folder`: where cold rows lie, none where all rows lie in memory."""
        if folder is not None:
            run = config.run.model_copy(update={"host_memory": memory_bytes})
            hot = {"hot_budget_bytes": memory_bytes * 7 // 8, "max_moved_bytes": memory_bytes}
            config = config.model_copy(update={"run": run, "knobs": config.knobs.changed({**ON_DISK, **hot})})
        super().__init__(config, source, None, None, options=RunOptions(rows=folder))
        self._folder = folder
        if folder is not None:
            self._write_all(source)

    def _write_all(self, source: Source) -> None:
        """Write the first values of all rows, which would not be read from the disk otherwise."""
        store = self.runtime.store
        for table, spec in enumerate(source.tables):
            for first, weights in first_rows(store.seed, table, spec):
                state = np.zeros((len(weights), store.rule.state_width(spec.dim)), np.float32)
                store.contents.import_rows(table, first, weights, state)
        self.settle()

    def drive(self, steps: int) -> int:
        done = super().drive(steps)
        self.finish()
        self.runtime.store.settle()
        return done

    def counters(self) -> dict[str, float]:
        totals = self.runtime.reports.totals()
        found = {"loss_sum": totals["loss_sum"], "samples": totals["samples_trained"]}
        found |= {f"{stage} seconds": seconds for stage, seconds in self.runtime.times.seconds.items()}
        if self._folder is not None:
            for log in self.runtime.store.cold.types.logs:  # type: ignore[attr-defined]
                found |= {what: found.get(what, 0) + count for what, count in asdict(log.counts).items()}
        return found

    def facts(self) -> dict[str, Any]:
        store = self.runtime.store
        empty = sum(store.hot.tier.capacities) - store.hot.tier.hot_rows
        empty_bytes = empty * (max(store.hot.row_bytes()) + SLOT_RECORD_BYTES)
        hot = {"hot_rows": store.hot.tier.hot_rows, "hot_bytes": store.hot.bytes, "empty_bytes": empty_bytes}
        return {**hot, "rows": store.space.rows}

    def settle(self) -> None:
        self.runtime.store.settle()
        if self._folder is not None:
            sync_files(self._folder)

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self.runtime.store.contents.export(table)[0][ids]
        return found


Contestant = Ours | Rival


def build(setup: Setup, source: Source, config: Config) -> Contestant:
    """Build a contestant, all its rows on the disk where it has one."""
    memory_bytes = int(setup.rows_ratio * rows_bytes(config, source))
    if setup.name not in RIVALS:
        return Ours(config, source, None if setup.name == IN_MEMORY else Path(setup.folder), memory_bytes)
    folder = Path(setup.folder)
    if setup.name == ROCKS:
        from benchmarks.disk_tier.rocks import RocksRows

        return RocksRows(config, source, folder, memory_bytes)
    kind = MappedBags if setup.name.startswith(BAGS) else MappedArrays
    return kind(config, source, folder, setup.name.endswith(ADVISED))
