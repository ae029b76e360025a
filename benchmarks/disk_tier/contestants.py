"""Runs of ours, with all rows in memory or with cold rows on a disk, driven as the command line drives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.config.tree import ON_DISK, Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import SLOT_RECORD_BYTES, all_rows_bytes, row_bytes
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.fill import fill_uniform
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from benchmarks.common.shapes import SHAPES, configure
from benchmarks.disk_tier.plan import IN_MEMORY, RIVALS, Setup

CHUNK_ROWS = 1 << 18


class Contestant(Protocol):
    """One of those who take turns."""

    def drive(self, steps: int) -> None:
        """Make so many steps, with all that they leave to other threads."""

    def counters(self) -> dict[str, float]:
        """Return totals that only grow: `loss_sum` and `samples` at least."""

    def facts(self) -> dict[str, Any]:
        """Return what there is to know besides."""

    def settle(self) -> None:
        """Have its rows on the disk, outside of the clock, so that the next one finds the disk idle."""

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows of a table."""

    def close(self) -> None: ...


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


def build(setup: Setup, source: Source, config: Config) -> Contestant:
    """Build a contestant, all its rows on the disk where it has one."""
    memory_bytes = int(setup.rows_ratio * rows_bytes(config, source))
    if setup.name not in RIVALS:
        return Ours(config, source, None if setup.name == IN_MEMORY else Path(setup.folder), memory_bytes)
    from benchmarks.disk_tier.rivals import build_rival

    return build_rival(setup.name, config, source, Path(setup.folder), memory_bytes)


def first_rows(seed: int, table: int, spec: TableSpec) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the first values of a table's rows, those of a run of ours, in chunks with the number of their first row."""
    for first in range(0, spec.rows, CHUNK_ROWS):
        weights = np.empty((min(CHUNK_ROWS, spec.rows - first), spec.dim), np.float32)
        fill_uniform(np.uint64(seed), table, first_bound(spec.rows), first, weights)
        yield first, weights


def sync_files(folder: Path) -> None:
    """Return when all files of a folder are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)


class Ours:
    """A training run of ours."""

    def __init__(self, config: Config, source: Source, folder: Path | None, memory_bytes: int) -> None:
        """`folder`: where cold rows lie, none where all rows lie in memory."""
        if folder is not None:
            run = config.run.model_copy(update={"host_memory": memory_bytes})
            hot = {"hot_budget_bytes": memory_bytes * 7 // 8, "max_moved_bytes": memory_bytes}
            config = config.model_copy(update={"run": run, "knobs": config.knobs.changed({**ON_DISK, **hot})})
        self.runtime = assemble(config, source, options=RunOptions(rows=folder))
        self._folder = folder
        if folder is not None:
            self._write_all(source)
        self._reports = self.runtime.run()

    def _write_all(self, source: Source) -> None:
        """Write the first values of all rows, which would not be read from the disk otherwise."""
        store = self.runtime.store
        for table, spec in enumerate(source.tables):
            for first, weights in first_rows(store.seed, table, spec):
                state = np.zeros((len(weights), store.rule.state_width(spec.dim)), np.float32)
                store.contents.import_rows(table, first, weights, state)
        self.settle()

    def drive(self, steps: int) -> None:
        end = self.runtime.step_number + steps
        while self.runtime.step_number < end:
            next(self._reports)
        assert self.runtime.pipeline is not None
        self.runtime.pipeline.settle()
        self.runtime.observer.settle()
        self.runtime.store.settle()

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

    def close(self) -> None:
        self._reports.close()  # type: ignore[attr-defined]
