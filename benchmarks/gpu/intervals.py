"""Arithmetic of intervals, pairs of (start, end): what of the cold rows' way and of the computation happens at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Intervals = list[tuple[float, float]]

COLD = ("gather", "scatter", "up", "down")
"""What bringing cold rows to the device and back consists of: host memory to a slot, up, down, slot to host memory."""


def merge(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The union as intervals that neither touch nor overlap, in order."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """The time that the union covers."""
    return sum(end - start for start, end in merge(intervals))


def cut(intervals: Iterable[tuple[float, float]], start: float, end: float) -> Intervals:
    """What lies within a span."""
    return [(max(a, start), min(b, end)) for a, b in intervals if min(b, end) > max(a, start)]


def overlap(kinds: dict[str, Intervals]) -> dict[str, float]:
    """Seconds of cold work and computation, of both at once, and the last as a share of the lesser of the two."""
    cold = [interval for kind in COLD for interval in kinds.get(kind, [])]
    copies = [interval for kind in ("up", "down") for interval in kinds.get(kind, [])]
    compute = kinds.get("kernels", [])
    both, both_copies = (length(one) + length(compute) - length([*one, *compute]) for one in (cold, copies))
    lesser, lesser_copies = (min(length(one), length(compute)) for one in (cold, copies))
    return {
        "cold_seconds": length(cold),
        "copy_seconds": length(copies),
        "compute_seconds": length(compute),
        "both_seconds": both,
        "overlap_ratio": both / lesser if lesser else 0.0,
        "copy_overlap_ratio": both_copies / lesser_copies if lesser_copies else 0.0,
    }


def device_kinds(trace: dict[str, Any]) -> dict[str, Intervals]:
    """Copies up, copies down and kernels of a profiler trace, in seconds of the trace's clock."""
    kinds: dict[str, Intervals] = {"up": [], "down": [], "kernels": []}
    for event in trace.get("traceEvents", []):
        if event.get("ph") != "X":
            continue
        kind = kind_of(event.get("cat", ""), event.get("name", ""))
        if kind:
            start = float(event["ts"]) / 1e6
            kinds[kind].append((start, start + float(event.get("dur", 0)) / 1e6))
    return kinds


def kind_of(category: str, name: str) -> str:
    """`up`, `down`, `kernels` (memory the device sets or copies within itself included), or nothing."""
    category = category.lower()
    if category == "gpu_memcpy":
        return "up" if "HtoD" in name else "down" if "DtoH" in name else "kernels"
    return "kernels" if category in ("kernel", "gpu_memset") else ""


def marks(trace: dict[str, Any], name: str) -> list[float]:
    """Starts of the host's own marks of a name, in seconds of the trace's clock."""
    events = trace.get("traceEvents", [])
    return sorted(float(e["ts"]) / 1e6 for e in events if e.get("name") == name and e.get("ph") == "X")
