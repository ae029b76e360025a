"""Before any clock runs: kernels equal their twins, and every exact policy equals plain steps on the device.

In float64, on the same batches: `hybrid` on the device against `hybrid` on the CPU, and all others, over budgets, splits and
update rules, against `hybrid` on the device. Bounds of the losses and rows are those of the parity suite; between two kinds of
processors they are wider, since their logarithms differ in the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from adaptive_rec.assemble import assemble
from adaptive_rec.batch import Position
from adaptive_rec.config import Config
from adaptive_rec.telemetry import Snapshot
from benchmarks.gpu.contestants import Where
from benchmarks.gpu.explain import explain
from benchmarks.gpu.shapes import SHAPES, Preloaded, configure, open_shape, preload

STEPS = 50
LOSS_BOUND, ROW_BOUND = 1e-12, 1e-11
ACROSS_LOSS_BOUND, ACROSS_ROW_BOUND = 1e-10, 1e-9
FLOAT32_BOUND = 1e-4

MAIN_RULE = "rowwise_adagrad"
RULES = ("lazy_adam", "sgd", "adagrad")
HOST = Where(torch.device("cpu"), "cpu")

DEVICE_RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("device_only", ("knobs.policy=device_only",)),
    ("hotline, split", ("knobs.policy=hotline", "run.split=always")),
    ("hotline, whole batches", ("knobs.policy=hotline", "run.split=never")),
    ("hotline, read ahead 6 deep", ("knobs.policy=hotline", "run.split=always", "knobs.prefetch_depth=6")),
    ("slipstream, probing always", ("knobs.policy=slipstream", "knobs.probe_ratio=1.0", "run.split=always")),
)


@dataclass
class Outcome:
    losses: np.ndarray[Any, Any]
    rows: list[np.ndarray[Any, Any]]
    hot_ratio: float


def check(where: Where, deadline: float, note: Callable[[str], None]) -> dict[str, Any]:
    """All checks there is time for, the most important ones in any case; `passed` where every one that ran did."""
    began = time.perf_counter()
    left_out: list[str] = []
    lines = parity_lines(where, MAIN_RULE, DEVICE_RUNS)
    lines.append(float32_line(where))
    lines += kernel_lines(where, deadline, left_out)
    for rule in RULES[:1] if where.rehearsal else RULES:
        if time.perf_counter() < deadline or where.rehearsal:
            lines += parity_lines(where, rule, DEVICE_RUNS[1:4:2] if where.rehearsal else DEVICE_RUNS[:4])
        else:
            left_out.append(f"parity under {rule}")
    if left_out:
        note(f"left out for want of time: {', '.join(left_out)}")
    for line in lines:
        if not line["passed"]:
            note(f"FAILED: {line['check']}: {line['difference']:.3g} over {line['bound']:.3g} {line['error'][:300]}")
    passed = all(line["passed"] for line in lines)
    note(f"{len(lines)} checks, {sum(not line['passed'] for line in lines)} failed")
    return {"passed": passed, "checks": lines, "left_out": left_out, "seconds": time.perf_counter() - began}


def kernel_lines(where: Where, deadline: float, left_out: list[str]) -> list[dict[str, Any]]:
    try:
        from benchmarks.gpu.kernel_checks import check_kernels

        return check_kernels(where, deadline, left_out)
    except Exception as error:
        return [_line("kernels can be imported", float("inf"), 0.0, explain(error))]


def parity_lines(where: Where, rule: str, runs: tuple[tuple[str, tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    """One update rule: `hybrid` on device and CPU, then the others against it."""
    lines: list[dict[str, Any]] = []
    try:
        plain, on_cpu = (train(place, rule, steps_of(where), ("knobs.policy=hybrid",)) for place in (where, HOST))
        lines += compare(f"{rule}, hybrid: device and CPU", plain, on_cpu, True)
    except Exception as error:
        return [_line(f"{rule}, hybrid", float("inf"), 0.0, explain(error))]
    for name, settings in runs:
        try:
            lines += compare(f"{rule}, {name}", train(where, rule, steps_of(where), settings), plain, False)
        except Exception as error:
            lines.append(_line(f"{rule}, {name}", float("inf"), 0.0, explain(error)))
    return lines


def steps_of(where: Where) -> int:
    return 12 if where.rehearsal else STEPS


def float32_line(where: Where) -> dict[str, Any]:
    """The arithmetic of a real run, over some steps, against the CPU."""
    try:
        # SGD throughout: Adagrad would make whole steps of gradients that are nothing but rounding.
        settings = ("knobs.policy=hotline", "run.precision=float32", "optimizer.dense=SGD")
        mine, theirs = (train(place, "sgd", steps_of(where), settings) for place in (where, HOST))
        return _line("float32, hotline: losses on device and CPU", relative(mine.losses, theirs.losses), FLOAT32_BOUND)
    except Exception as error:
        return _line("float32, hotline", float("inf"), FLOAT32_BOUND, explain(error))


def train(where: Where, rule: str, steps: int, settings: tuple[str, ...]) -> Outcome:
    """A short run on small multi-hot tables; the losses of its steps and every row at its end."""
    chosen = (
        *where.settings, "run.precision=float64", "knobs.report_every=1", "knobs.reclassify_every=10",
        f"optimizer.embedding={rule}", "knobs.hot_budget_bytes=48KiB", *settings, f"run.steps={steps}",
    )  # fmt: skip
    config = configure(SHAPES["tiny_bags"], 128, chosen, None)
    runtime = assemble(config, source=batches_of(config, steps), streams=where.streams(7))
    losses = [report.loss for report in runtime.run() if isinstance(report, Snapshot)]
    rows = [part for table in range(len(runtime.store.space.tables)) for part in runtime.store.export_table(table)]
    totals = runtime.totals()
    return Outcome(np.array(losses), rows, totals["lookups_hot"] / totals["lookups"])


_BATCHES: dict[int, Preloaded] = {}


def batches_of(config: Config, steps: int) -> Preloaded:
    """The same batches for every run; each run ends by its own count of steps."""
    if steps not in _BATCHES:
        _BATCHES[steps] = preload(open_shape(SHAPES["tiny_bags"], config), config, steps)
        assert len(list(islice(_BATCHES[steps].train_batches(Position(), 128), steps))) == steps
    return _BATCHES[steps]


def compare(name: str, mine: Outcome, theirs: Outcome, across: bool) -> list[dict[str, Any]]:
    loss_bound, row_bound = (ACROSS_LOSS_BOUND, ACROSS_ROW_BOUND) if across else (LOSS_BOUND, ROW_BOUND)
    rows = max(float(np.abs(a - b).max()) if a.size else 0.0 for a, b in zip(mine.rows, theirs.rows, strict=True))
    return [
        {
            **_line(f"{name}: losses", relative(mine.losses, theirs.losses), loss_bound),
            "hot_lookup_ratio": mine.hot_ratio,
        },
        _line(f"{name}: rows and state", rows, row_bound),
    ]


def relative(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    if len(one) != len(other) or not len(one):
        return float("inf")
    return float(np.max(np.abs(one - other) / np.maximum(np.abs(other), 1e-300)))


def _line(name: str, difference: float, bound: float, error: str = "") -> dict[str, Any]:
    passed = bool(difference <= bound) and not error  # no number is no pass
    return {"check": name, "difference": difference, "bound": bound, "passed": passed, "error": error}
