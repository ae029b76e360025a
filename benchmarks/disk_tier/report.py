"""Figures of turns, tables of cells, and what each part of the disk tier brings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.common.results import table_head
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.disk_tier.plan import ABLATION, AHEAD, FREEZE, NOTHING_AHEAD, POPULAR_FIRST
from benchmarks.disk_tier.setup import IN_MEMORY

HEADS = [
    "run", "ms a step", "of all in memory (95 %)", "processor ms", "waits for the disk", "rows read", "found in memory",
    "rows written", "memory, MiB",
]  # fmt: skip


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a contestant's turns, of one step each. `wait_ratio`: part of the step that waits for the disk."""
    seconds = [turn["seconds"] for turn in turns]
    waits = [turn["gained"].get("disk seconds", 0.0) / turn["seconds"] for turn in turns]
    return {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "processor_seconds": statistics.median(turn["processor_seconds"] for turn in turns),
        "wait_ratio": statistics.median(waits),
        "gained": {name: statistics.median(turn["gained"][name] for turn in turns) for name in turns[0]["gained"]},
    }


def table(cell: str, result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a cell's table."""
    runs = result["runs"]
    yield table_head(HEADS)
    for name, run in runs.items():
        ratio = ratio_of_medians(run["seconds"], runs[IN_MEMORY]["seconds"])
        gained = run["gained"]
        cells = [name, f"{1e3 * run['median']:.1f}"]
        cells.append(f"{ratio['ratio']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})")
        cells.append(f"{1e3 * run['processor_seconds']:.0f}")
        cells.append(f"{run['wait_ratio']:.1%}" if "rows_read" in gained else "")
        cells += [
            f"{gained[what]:.0f}" if what in gained else "" for what in ("rows_read", "rows_found", "rows_written")
        ]
        cells.append(
            f"{run['limit_bytes'] / 2**20:.0f}" if run["limit_bytes"] else f"{run['peak_bytes'] / 2**20:.0f}, no limit"
        )
        yield f"| {' | '.join(cells)} |"
    if cell == ABLATION.name:
        yield from shares(runs)


def shares(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the gain of each part, beside the run that has those before it."""
    parts = [NOTHING_AHEAD, AHEAD, POPULAR_FIRST, FREEZE]
    whole = runs[NOTHING_AHEAD]["median"] - min(runs[part]["median"] for part in parts)
    yield ""
    yield table_head(["part", "ms saved", "share of the gain", "rows written saved"])
    for before, part in zip(parts[:-1], parts[1:], strict=True):
        saved = runs[before]["median"] - runs[part]["median"]
        written = runs[before]["gained"]["rows_written"] - runs[part]["gained"]["rows_written"]
        yield f"| {part} | {1e3 * saved:.1f} | {saved / whole if whole else 0:.0%} | {written:.0f} |"
