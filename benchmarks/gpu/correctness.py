"""Before any clock runs: kernels equal their twins, and every exact policy equals plain steps on the device.

In float64, on the same batches: `hybrid` on the device against `hybrid` on the CPU, and all others, over budgets, splits and
update rules, against `hybrid` on the device. Bounds of the losses and rows are those of the parity suite; between two kinds of
processors they are wider, since their logarithms differ in the last bit. Then what only a device shows: `device_checks.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common.contestants import Where
from benchmarks.common.explain import explain
from benchmarks.gpu.device_checks import check_device
from benchmarks.gpu.short_runs import HOST, Outcome, line, relative, train

STEPS = 50
LOSS_BOUND, ROW_BOUND = 1e-12, 1e-11
ACROSS_LOSS_BOUND, ACROSS_ROW_BOUND = 1e-10, 1e-9
FLOAT32_BOUND = 1e-4
MOST_COLD = 0.99
"""Of the lookups of a `hotline` run: its rows are to have been hot."""

MAIN_RULE = "rowwise_adagrad"
RULES = ("lazy_adam", "sgd", "adagrad")

DEVICE_RUNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("device_only", ("knobs.policy=device_only",)),
    ("hotline, split", ("knobs.policy=hotline", "run.split=always")),
    ("hotline, whole batches", ("knobs.policy=hotline", "run.split=never")),
    ("hotline, read ahead 6 deep", ("knobs.policy=hotline", "run.split=always", "knobs.prefetch_depth=6")),
    ("slipstream, probing always", ("knobs.policy=slipstream", "knobs.probe_ratio=1.0", "run.split=always")),
)


def check(where: Where, deadline: float, note: Callable[[str], None]) -> dict[str, Any]:
    """All checks there is time for, the most important ones in any case; `passed` where every one that ran did."""
    began = time.perf_counter()
    left_out: list[str] = []
    lines = parity_lines(where, MAIN_RULE, DEVICE_RUNS)
    lines.append(float32_line(where))
    lines += check_device(where, left_out)
    lines += kernel_lines(where, deadline, left_out)
    for rule in RULES[:1] if where.rehearsal else RULES:
        if time.perf_counter() < deadline or where.rehearsal:
            lines += parity_lines(where, rule, DEVICE_RUNS[1:4:2] if where.rehearsal else DEVICE_RUNS[:4])
        else:
            left_out.append(f"parity under {rule}")
    if left_out:
        note(f"left out: {', '.join(left_out)}")
    wrong = [one for one in lines if not one["passed"]]
    for one in wrong:
        note(f"FAILED: {one['check']}: {one['difference']:.3g} over {one['bound']:.3g} {one['error'][:300]}")
    note(f"{len(lines)} checks, {len(wrong)} failed")
    return {"passed": not wrong, "checks": lines, "left_out": left_out, "seconds": time.perf_counter() - began}


def kernel_lines(where: Where, deadline: float, left_out: list[str]) -> list[dict[str, Any]]:
    try:
        from benchmarks.gpu.kernel_checks import check_kernels

        return check_kernels(where, deadline, left_out)
    except Exception as error:
        return [line("kernels can be imported", float("inf"), 0.0, explain(error))]


def parity_lines(where: Where, rule: str, runs: tuple[tuple[str, tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    """One update rule: `hybrid` on device and CPU, then the others against it."""
    lines: list[dict[str, Any]] = []
    try:
        plain, on_cpu = (train(place, rule, steps_of(where), ("knobs.policy=hybrid",)) for place in (where, HOST))
        lines += compare(f"{rule}, hybrid: device and CPU", plain, on_cpu, True)
    except Exception as error:
        return [line(f"{rule}, hybrid", float("inf"), 0.0, explain(error))]
    for name, settings in runs:
        try:
            found = train(where, rule, steps_of(where), settings)
            lines += compare(f"{rule}, {name}", found, plain, False)
            if name.startswith("hotline"):  # else it is equal because it did the same
                lines.append(line(f"{rule}, {name}: share of cold lookups", 1 - found.hot_ratio, MOST_COLD))
        except Exception as error:
            lines.append(line(f"{rule}, {name}", float("inf"), 0.0, explain(error)))
    return lines


def steps_of(where: Where) -> int:
    return 12 if where.rehearsal else STEPS


def float32_line(where: Where) -> dict[str, Any]:
    """The arithmetic of a real run, over some steps, against the CPU."""
    try:
        # SGD throughout: Adagrad would make whole steps of gradients that are nothing but rounding.
        settings = ("knobs.policy=hotline", "run.precision=float32", "optimizer.dense=SGD")
        mine, theirs = (train(place, "sgd", steps_of(where), settings) for place in (where, HOST))
        return line("float32, hotline: losses on device and CPU", relative(mine.losses, theirs.losses), FLOAT32_BOUND)
    except Exception as error:
        return line("float32, hotline", float("inf"), FLOAT32_BOUND, explain(error))


def compare(name: str, mine: Outcome, theirs: Outcome, across: bool) -> list[dict[str, Any]]:
    loss_bound, row_bound = (ACROSS_LOSS_BOUND, ACROSS_ROW_BOUND) if across else (LOSS_BOUND, ROW_BOUND)
    rows = max(float(np.abs(a - b).max()) if a.size else 0.0 for a, b in zip(mine.rows, theirs.rows, strict=True))
    return [
        line(f"{name}: losses", relative(mine.losses, theirs.losses), loss_bound),
        line(f"{name}: rows and state", rows, row_bound),
    ]
