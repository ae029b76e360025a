"""Short runs on small multi-hot tables, for the checks that come before any clock runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from adaptive_rec.batch import Position
from adaptive_rec.config.tree import Config
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from benchmarks.common.contestants import Where
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload

HOST = Where(torch.device("cpu"), "cpu")
BATCH_SIZE = 128


@dataclass
class Outcome:
    losses: np.ndarray[Any, Any]
    rows: list[np.ndarray[Any, Any]]
    hot_ratio: float


def build(where: Where, rule: str, steps: int, settings: tuple[str, ...]) -> Runtime:
    chosen = (
        *where.settings, "run.precision=float64", "knobs.report_every=1", "knobs.reclassify_every=10",
        f"optimizer.embedding={rule}", "knobs.hot_budget_bytes=48KiB", *settings, f"run.steps={steps}",
    )  # fmt: skip
    config = configure(SHAPES["tiny_bags"], BATCH_SIZE, chosen, None)
    return assemble(config, source=batches_of(config, steps), streams=where.streams(7))


def train(where: Where, rule: str, steps: int, settings: tuple[str, ...]) -> Outcome:
    """The losses of a run's steps and every row at its end."""
    runtime = build(where, rule, steps, settings)
    losses = [report.loss for report in runtime.run() if isinstance(report, Snapshot)]
    rows = [part for table in range(len(runtime.store.space.tables)) for part in runtime.store.export_table(table)]
    totals = runtime.reports.totals()
    return Outcome(np.array(losses), rows, totals["lookups_hot"] / totals["lookups"])


_BATCHES: dict[tuple[int, ...], Preloaded] = {}


def batches_of(config: Config, steps: int) -> Preloaded:
    """The same batches for every run on the same tables; each run ends by its own count of steps."""
    key = (steps, *config.data.table_rows)
    if key not in _BATCHES:
        _BATCHES[key] = preload(open_shape(SHAPES["tiny_bags"], config), config, steps)
        assert len(list(islice(_BATCHES[key].train_batches(Position(), BATCH_SIZE), steps))) == steps
    return _BATCHES[key]


def relative(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    if len(one) != len(other) or not len(one):
        return float("inf")
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(other), 1e-300)))


def line(name: str, difference: float, bound: float, error: str = "") -> dict[str, Any]:
    passed = bool(difference <= bound) and not error  # no number is no pass
    return {"check": name, "difference": difference, "bound": bound, "passed": passed, "error": error}
