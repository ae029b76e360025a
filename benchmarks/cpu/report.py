"""The bars of the CPU benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.report import Found, ratio_bar, runs_of
from benchmarks.common.results import bar
from benchmarks.common.statistics import ratio_of_medians
from benchmarks.cpu.plan import TORCH_LAYERS

FLOOR_BARS = (
    ("kaggle-fp32", "hybrid", "floor", 1.08), ("kaggle-fp32", "hotline", "floor", 1.05),
    ("kaggle-fp32", "hotline split", "floor split", 1.05), ("kaggle-bf16", "hybrid", "floor", 1.15),
)  # fmt: skip
RIVAL_BARS = (
    ("kaggle-fp32", "hybrid", 1.05), ("kaggle-bf16", "hybrid", 1.1), ("mlperf-fp32", "hybrid", 1.08),
    ("mlperf-bf16", "hybrid", 1.1), ("criteo", "hybrid", 1.05),
    ("embedding-kaggle", "ours", 2.0), ("embedding-mlperf", "ours", 1.4),
)  # fmt: skip
RIVALS = ("FBGEMM", "TorchRec")
DLRM_BARS = (
    ("dlrm-fp32", "", 1.25),
    ("dlrm-fp32", " compiled", 1.25),
    ("dlrm-bf16", "", 1.25),
    ("dlrm-bf16", " compiled", 1.25),
)
"""TorchRec's DLRM and ours, both eager or both compiled."""
SKETCH_BOUND, ROWS_BOUND, DROP_BOUND, FREEZE_BOUND, PREFETCH_BOUND = 80e6, 1.5, 0.9, 0.8, 0.98


def bars(found: Found) -> list[dict[str, Any]]:
    """Every bar that the results say something about."""
    return [
        *_floor_bars(found), *_rival_bars(found), *_dlrm_bars(found), *_sketch_bar(found), *_rows_bar(found),
        *_skipping_bars(found), *_prefetch_bar(found),
    ]  # fmt: skip


def _floor_bars(found: Found) -> Iterator[dict[str, Any]]:
    for cell, mine, floor, bound in FLOOR_BARS:
        runs = runs_of(found, cell)
        if mine in runs and floor in runs:
            yield ratio_bar(f"{mine} / {floor}, {cell}", runs[mine], runs[floor], bound, at_least=False)


def _rival_bars(found: Found) -> Iterator[dict[str, Any]]:
    """Each rival as it is quickest: in any of its forms, its threads asleep or busy while they wait. And with torch's own linear
    layers, as its users have it."""
    for cell, mine, bound in RIVAL_BARS:
        runs, waiting = runs_of(found, cell), runs_of(found, f"{cell}-waiting")
        for rival in RIVALS:
            plain = f"{rival}{TORCH_LAYERS}"
            if plain in runs and mine in runs:
                yield ratio_bar(f"{plain} / {mine}, {cell}", runs[plain], runs[mine], bound, True)
            forms = [(name, run, True) for name, run in runs.items() if name.startswith(rival)]
            forms += [(f"{name} waiting busily", run, False) for name, run in waiting.items() if name.startswith(rival)]
            if forms and mine in runs:
                name, run, paired = min(forms, key=lambda form: form[1]["median"])
                yield ratio_bar(f"{name} / {mine}, {cell}", run, runs[mine], bound, True, paired)


def _dlrm_bars(found: Found) -> Iterator[dict[str, Any]]:
    for cell, how, bound in DLRM_BARS:
        runs, mine, theirs = runs_of(found, cell), f"hybrid{how}", f"TorchRec's DLRM{how}"
        if mine in runs and theirs in runs:
            yield ratio_bar(f"{theirs} / {mine}, {cell}", runs[theirs], runs[mine], bound, at_least=True)


def _sketch_bar(found: Found) -> Iterator[dict[str, Any]]:
    run = runs_of(found, "sketch").get("ours 2^16")
    if run:
        lookups = {"seconds": [run["facts"]["lookups"]] * len(run["seconds"])}
        yield ratio_bar("lookups counted a second on one core, 2^16, sketch", lookups, run, SKETCH_BOUND, True)


def _rows_bar(found: Found) -> Iterator[dict[str, Any]]:
    """Measured in processes of their own, so each over its own floor: the machine may have been slower for one of them."""
    most, least = (runs_of(found, f"rows-{millions}m") for millions in (200, 1))
    if most and least:
        over, under = (ratio_of_medians(runs["hybrid"]["seconds"], runs["floor"]["seconds"]) for runs in (most, least))
        interval = [over["low"] / under["high"], over["high"] / under["low"]]
        what = "step with 200 M rows / with 1 M, each over its dense floor, rows"
        yield bar(what, over["ratio"] / under["ratio"], ROWS_BOUND, False, interval)


def _skipping_bars(found: Found) -> Iterator[dict[str, Any]]:
    dropping, freezing = runs_of(found, "skipping"), runs_of(found, "freezing")
    if dropping:
        gained = dropping["dropping"]["gained"]
        share = 1 - sum(gained["samples_trained"]) / sum(gained["samples_seen"])
        what = f"time saved / share of samples dropped ({share:.0%}), skipping"
        yield from _cut(what, dropping["dropping"], dropping["no skipping"], share, DROP_BOUND)
    if freezing:
        share = freezing["half frozen"]["facts"]["frozen"]
        what = f"update time saved / share of rows frozen ({share:.0%}), freezing"
        yield from _cut(what, freezing["half frozen"], freezing["all rows"], share, FREEZE_BOUND)


def _cut(what: str, less: Any, whole: Any, share: float, bound: float) -> Iterator[dict[str, Any]]:
    ratio = ratio_of_medians(less["seconds"], whole["seconds"])
    figure, *interval = ((1 - ratio[key]) / share if share else 0.0 for key in ("ratio", "high", "low"))
    yield bar(what, figure, bound, True, interval)


def _prefetch_bar(found: Found) -> Iterator[dict[str, Any]]:
    runs = runs_of(found, "prefetching")
    if runs:
        what = "speed with prefetching / without, prefetching"
        yield ratio_bar(what, runs["without prefetching"], runs["hybrid"], PREFETCH_BOUND, at_least=True)
