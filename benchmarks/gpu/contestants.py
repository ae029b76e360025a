"""A run of ours that can be driven some steps at a time, and what every contestant of a comparison offers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from adaptive_rec.assemble import assemble
from adaptive_rec.config import Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import load_policy


@dataclass(frozen=True)
class Where:
    """The device, real or rehearsed."""

    device: torch.device
    rehearsal: str = ""
    """How it is rehearsed: `cpu` is the path of CPU runs, `fake` the device path over host memory; empty on a GPU."""

    def streams(self, seed: int = 1) -> Any:
        """The device to give to `assemble`; None lets it choose."""
        if self.rehearsal != "fake":
            return None
        from adaptive_rec.embedding.streams import LateStreams

        return LateStreams(seed)

    @property
    def settings(self) -> tuple[str, ...]:
        return ("run.device=cpu", "run.threads=1") if self.rehearsal else ("run.device=cuda",)

    def sync(self) -> None:
        """Return when the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def memory_bytes(self) -> int:
        """Device memory that this process's tensors take."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def used_bytes(self) -> int:
        """Device memory in use by whatever: what torch has reserved, graphs and the context included."""
        if self.device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free


class Contestant(Protocol):
    name: str
    window_steps: int
    """Steps after which its work repeats, reclassification included; a turn is a multiple of them where time allows."""

    @property
    def steps(self) -> int: ...

    def drive(self, steps: int) -> int:
        """Train at least so many steps; return how many it were."""

    def counters(self) -> dict[str, float]:
        """Totals that only grow; `samples` at least."""

    def facts(self) -> dict[str, Any]:
        """What there is to know besides."""

    def close(self) -> None: ...


def budget_bytes(config: Config, source: Source, rows_ratio: float) -> int:
    """Device bytes in which a share of all rows fits, with their optimizer state and what the policy keeps of them."""
    policy = load_policy(config.knobs.policy)
    space = RowSpace.of(source.tables, source.features)
    dtype = torch.float64 if config.run.precision == "float64" else torch.float32
    sizes = row_bytes(space, RowRule.of(config.optimizer), dtype.itemsize, policy.tracks_movement)
    return int(rows_ratio * all_rows_bytes(space, sizes))


class Ours:
    """A training run, driven through `Runtime.run` as the command line does."""

    def __init__(self, name: str, config: Config, source: Source, where: Where, rows_ratio: float | None) -> None:
        self.name = name
        if rows_ratio is not None:
            knobs = config.knobs.changed({"hot_budget_bytes": budget_bytes(config, source, rows_ratio)})
            config = config.model_copy(update={"knobs": knobs})
        before, began = where.memory_bytes(), time.perf_counter()
        self.runtime = assemble(config, source=source, streams=where.streams(config.run.seed))
        _touch_state(self.runtime.store)
        self.window_steps = config.knobs.reclassify_every if self.runtime.policy.tracks_popularity else 1
        self._reports: Iterator[Any] = self.runtime.run()
        self._report_steps = config.knobs.report_every
        self._where = where
        self.drive(1)
        self._setup_seconds = time.perf_counter() - began
        self._memory_bytes = where.memory_bytes() - before
        self._budget_bytes = config.knobs.hot_budget_bytes if rows_ratio is not None else 0

    @property
    def steps(self) -> int:
        return int(self.runtime.step_number)

    def drive(self, steps: int) -> int:
        """Up to the first report after so many steps: a report reads the loss, so the device has come as far."""
        began = self.steps
        while self.steps < began + steps:
            next(self._reports)
        return self.steps - began

    def counters(self) -> dict[str, float]:
        totals = dict(self.runtime.totals())
        return {**totals, "samples": totals["samples_seen"]}

    def facts(self) -> dict[str, Any]:
        store = self.runtime.store
        return {
            "policy": self.runtime.knobs.policy,
            "optimizer": self.runtime.config.optimizer.embedding,
            "budget_bytes": self._budget_bytes,
            "device_tier_bytes": store.device_bytes,
            "memory_bytes_at_start": self._memory_bytes,
            "hot_rows": store.device.hot_rows,
            "rows": store.space.rows,
            "setup_seconds": self._setup_seconds,
            "stage_seconds": dict(self.runtime.times.seconds),
            "steps": self.steps,
        }

    def close(self) -> None:
        close = getattr(self._reports, "close", None)
        if close is not None:
            close()
        self._where.sync()


def _touch_state(store: Any) -> None:
    """Optimizer state begins as pages that the system has promised only; a long run has them all."""
    from benchmarks.gpu.shapes import touch

    for state in getattr(store.host, "state", []):
        if state.size:
            touch(state)
