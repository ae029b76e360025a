"""The first twenty steps on a device: as each kernel is launched and waited for, and recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from benchmarks.common.contestants import Where

STEPS = 20
LOSS_BOUND = 1e-5
"""Relative; a recorded product may be added up in another order."""


def first_steps(
    configured: Callable[..., Config],
    source: Source,
    where: Where,
    graphs: tuple[bool, ...],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Losses of the first steps, without and with graphs as asked for; `passed` where they are the same numbers."""
    found: dict[str, Any] = {"losses": {}}
    for recorded in graphs:
        # SGD: Adagrad would make whole steps of gradients that are nothing but rounding.
        config = configured(**{
            "run.steps": STEPS, "run.cuda_graphs": str(recorded).lower(), "knobs.policy": "hotline", "knobs.report_every": 1,
            "knobs.reclassify_every": 6, "optimizer.dense": "SGD",
        })  # fmt: skip
        runtime = assemble(config, source=source, streams=where.streams(1))
        name = "recorded" if recorded else "eager"
        losses = [report.loss for report in runtime.run() if isinstance(report, Snapshot)]
        found["losses"][name] = losses
        note(f"{name}: {len(losses)} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    runs = list(found["losses"].values())
    difference = max((abs(a - b) / abs(b) for a, b in zip(runs[0], runs[-1], strict=True)), default=float("inf"))
    complete = all(len(losses) == STEPS and all(0 < loss < 100 for loss in losses) for losses in runs)
    return found | {"difference": difference, "bound": LOSS_BOUND, "passed": complete and difference <= LOSS_BOUND}
