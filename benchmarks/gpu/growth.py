"""Whether a run's memory grows while it trains."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.common.contestants import Contestant, Where


def memory_growth(contestant: Contestant, where: Where, deadline: float) -> dict[str, Any]:
    """Train until the deadline and watch the device's memory. Growth is what the last third needs above the middle one.

    The first third is left out: buffers grow with the largest batch seen and graphs are recorded at first use.
    """
    began = time.perf_counter()
    samples: list[dict[str, float]] = []
    while time.perf_counter() < deadline or len(samples) < 6:
        contestant.drive(1)
        samples.append(
            {
                "seconds": time.perf_counter() - began,
                "steps": contestant.steps,
                "tensor_bytes": where.memory_bytes(),
                "used_bytes": where.used_bytes(),
                "host_bytes": resident_bytes(),
            }
        )
    return {"samples": thin(samples, 400), "seconds": samples[-1]["seconds"], **growth(samples)}


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    third = len(samples) // 3
    found = {}
    for key in ("tensor_bytes", "used_bytes", "host_bytes"):
        middle = max(sample[key] for sample in samples[third : 2 * third])
        found[f"grown_{key}"] = max(sample[key] for sample in samples[2 * third :]) - middle
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def thin(values: list[Any], most: int) -> list[Any]:
    return values[:: max(1, len(values) // most)]
