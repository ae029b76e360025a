"""What only a device shows: one step in bf16, that training waits for events only, that memory is what it is said to be."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adaptive_rec.live.telemetry import Snapshot
from benchmarks.common.contestants import Where, record_all_sizes
from benchmarks.common.explain import explain
from benchmarks.gpu.short_runs import HOST, build, line, relative, train

BF16_BOUND = 2e-2
"""That of the parity suite, for one step."""
MIB = 1 << 20
WARM_STEPS, CHECKED_STEPS = 20, 60


def check_device(where: Where, left_out: list[str]) -> list[dict[str, Any]]:
    """Without CUDA the first one only; the others are named in `left_out`."""
    checks: dict[str, Callable[[Where], list[dict[str, Any]]]] = {
        "bf16, one step: device and CPU": one_step_in_bf16,
        "training waits for events only": waiting,
        "device memory: tier, staging and dense part": memory,
    }
    lines = []
    for name, check in checks.items():
        if check is not one_step_in_bf16 and where.device.type != "cuda":
            left_out.append(f"{name} (needs CUDA)")
            continue
        try:
            lines += check(where)
        except Exception as error:
            lines.append(line(name, float("inf"), 0.0, explain(error)))
    return lines


def one_step_in_bf16(where: Where) -> list[dict[str, Any]]:
    """From one and the same state; over many steps rounding makes two runs of one."""
    settings = ("run.precision=bf16", "optimizer.dense=SGD")
    mine = train(where, "sgd", 1, ("knobs.policy=device_only", *settings))
    theirs = train(HOST, "sgd", 1, ("knobs.policy=hybrid", *settings))
    rows = max(float(np.abs(a - b).max()) if a.size else 0.0 for a, b in zip(mine.rows, theirs.rows, strict=True))
    name = "bf16, one step: device and CPU"
    return [
        line(f"{name}: loss", relative(mine.losses, theirs.losses), BF16_BOUND),
        line(f"{name}: rows", rows, BF16_BOUND),
    ]


def waiting(where: Where) -> list[dict[str, Any]]:
    """Steps, windows that end, probes and reports under torch's ban on waiting for the device; events are not under it."""
    settings = ("knobs.policy=slipstream", "knobs.probe_ratio=0.3", "run.split=always", "run.precision=float32")
    runtime = build(where, "rowwise_adagrad", WARM_STEPS + CHECKED_STEPS, settings)
    record_all_sizes(runtime)  # recording may wait, replaying may not
    last = 0
    try:
        for report in runtime.run():
            if isinstance(report, Snapshot):
                last = report.step
                if last == WARM_STEPS:
                    torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    missing = float(WARM_STEPS + CHECKED_STEPS - last)
    return [line("training waits for events only: steps that were not made", missing, 0.0)]


@dataclass
class Memory:
    """What a run took at most, and what it says that it takes. The rest is the dense part's."""

    peak_bytes: int
    device_bytes: int
    staging_bytes: int
    tensors: int
    """That tier and staging slots consist of. For each the allocator may set 1 MiB more aside than was asked for."""


def memory(where: Where) -> list[dict[str, Any]]:
    measure(where, 0)  # what stays for the process, such as the libraries' workspaces, is there from now on
    return [memory_line(measure(where, 96 * MIB), measure(where, 0))]


def memory_line(found: Memory, without_budget: Memory) -> dict[str, Any]:
    """The dense part is what a run without hot rows takes beside its staging slots."""
    dense_bytes = without_budget.peak_bytes - without_budget.staging_bytes
    bound = found.device_bytes + found.staging_bytes + dense_bytes + found.tensors * MIB
    return line("device memory: at most tier, staging and dense part, bytes", found.peak_bytes, bound)


def measure(where: Where, budget_bytes: int) -> Memory:
    """Larger tables than elsewhere: the tier is to be most of what is taken."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    rows = ("data.table_rows=[2000000, 1000000, 500000, 500000]", "data.max_table_rows=2000000")
    settings = ("knobs.policy=hotline", "run.split=never", "run.precision=float32", *rows)
    steps = WARM_STEPS + CHECKED_STEPS
    runtime = build(where, "rowwise_adagrad", steps, (*settings, f"knobs.hot_budget_bytes={budget_bytes}"))
    for _ in runtime.run():
        pass
    store: Any = runtime.store
    tensors = 2 * len(store.space.pools) + sum(ring.slots for ring in store.rings)
    peak = torch.cuda.max_memory_allocated() - before
    return Memory(peak, store.device_bytes, store.staging_bytes, tensors)
