"""What the sketch costs: nanoseconds for each thing it does, beside Apache DataSketches' sketch of the same size.

Used by `tracking.py`, whose tables it prints; the keys are skewed like clicks (Zipf, exponent 1.2, a million rows).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import datasketches
import numpy as np

from adaptive_rec.tracking.count_min import CountMinSketch

BATCH = 2048 * 26
"""Lookups of a step: Criteo's 26 features at the usual batch size."""

RIVAL_LOOKUPS = 300_000


def best_seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least of some repetitions: what the work takes when nothing else disturbs it."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure_width(width: int, lookups: Any) -> dict[str, float]:
    """Nanoseconds by what is done, for one width."""
    one = np.ones(len(lookups), dtype=np.int64)
    starts = range(0, len(lookups) - BATCH + 1, BATCH)
    steps = [np.unique(lookups[at : at + BATCH], return_counts=True) for at in starts]
    distinct = sum(len(rows) for rows, _ in steps)
    batches = [(rows, np.concatenate([[0], np.cumsum(counts)])) for rows, counts in steps]
    ours, plain = CountMinSketch(width), CountMinSketch(width)
    rows = np.unique(lookups)
    np.random.default_rng(0).shuffle(rows)
    rival, few = datasketches.count_min_sketch(4, width), lookups[:RIVAL_LOOKUPS].tolist()

    def observe() -> None:
        for rows_U, segments_U1 in batches:
            ours.observe(rows_U, segments_U1)

    def add_to_rival() -> None:
        for row in few:
            rival.update(row)

    weighted = best_seconds(observe)
    return {
        "width": width,
        "observe_ns_per_distinct_row": 1e9 * weighted / distinct,
        "observe_ns_per_lookup": 1e9 * weighted / (BATCH * len(steps)),
        "observe_us_per_step": 1e6 * weighted / len(steps),
        "plain_add_ns_per_lookup": 1e9 * best_seconds(lambda: plain.add(lookups, one)) / len(lookups),
        "rival_ns_per_lookup": 1e9 * best_seconds(add_to_rival, 3) / len(few),
        "estimate_ns_per_row": 1e9 * best_seconds(lambda: ours.estimate(rows)) / len(rows),
        "decay_us": 1e6 * best_seconds(lambda: ours.decay(0.9)),
        "sketch_bytes": ours.bytes,
    }


def measure(seed: int) -> list[dict[str, float]]:
    lookups = (np.random.default_rng(seed).zipf(1.2, 2_000_000) % 1_000_000).astype(np.int64)
    measure_width(1 << 10, lookups[: 2 * BATCH])  # Compile first.
    return [measure_width(width, lookups) for width in (1 << 16, 1 << 20)]


def print_capture(lines: list[dict[str, Any]], bars: dict[float, float]) -> None:
    """Print the tables of the capture study: hits, then costs."""
    print("\n| stream | hot | sketch hits | exact hits | sketch / exact | bar | moved/window | windows | sketch KiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        bar = f">= {bars[line['hot_share']]}" + ("" if line["met"] else " **missed**")
        print(
            f"| {line['stream']} | {line['hot_share']:.0%} | {line['hit_ratio']:.4f} | {line['exact_hit_ratio']:.4f} "
            f"| {line['of_exact']:.4f} | {bar} | {line['moved_share']:.0%} | {line['windows']} "
            f"| {line['sketch_bytes'] >> 10} |"
        )
    print("\n| stream | hot | observe us/step | candidates + plan us/window | end window us | all us/step |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        each = line["observe_us"] + (line["plan_us"] + line["end_window_us"]) * line["windows"] / line["steps"]
        print(
            f"| {line['stream']} | {line['hot_share']:.0%} | {line['observe_us']:.0f} | {line['plan_us']:.0f} "
            f"| {line['end_window_us']:.0f} | {each:.0f} |"
        )


def print_speed(lines: list[dict[str, float]]) -> None:
    print(f"\nCounting, {BATCH} skewed lookups a step, depth 4:\n")
    print(
        "| width | MiB | a batch's distinct rows: ns/row (ns/lookup, us/step) | every lookup by itself: ns "
        "| DataSketches from Python: ns | estimate ns/row | decay us |"
    )
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| 2^{int(line['width']).bit_length() - 1} | {line['sketch_bytes'] / 2**20:.0f} "
            f"| {line['observe_ns_per_distinct_row']:.1f} ({line['observe_ns_per_lookup']:.1f}, "
            f"{line['observe_us_per_step']:.0f}) "
            f"| {line['plain_add_ns_per_lookup']:.1f} | {line['rival_ns_per_lookup']:.0f} "
            f"| {line['estimate_ns_per_row']:.1f} | {line['decay_us']:.0f} |"
        )
