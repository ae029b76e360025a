"""Prediction of a step on a CUDA device by its stages, from stated figures of the machine: launches, copies, memories, products.

Stages work at the same time on different batches, so a step takes as long as the longest one. What a stage does, and how often,
is counted in the code (`embedding/staged/`, `dense/replayed.py`); what that costs stands in the hardware profile.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from adaptive_rec.offline.forecast.hardware import DeviceCosts
from adaptive_rec.offline.forecast.lane import StepCounts

EAGER_LAUNCHES, TRITON_LAUNCHES, UPLOADS, WAITS = 8, 3, 2.5, 4.5
"""Of the training thread in a step whose batch is whole and whose rates stay the same, counted on a stubbed device."""
DENSE_KERNELS = 100
"""Recorded kernels of a step of DLRM with its optimizer."""
CLASSIFY_INTS, SORT_PASSES, SORT_TRAFFIC = 4, 4, 2
"""Integers up for each lookup where the host classifies; passes of a radix sort over 32-bit keys with their places, each of which
reads and writes both."""
HOST_CROSSINGS = 6
"""Times that a cold byte crosses host memory on its way out and home: read, written, read by the copy; and back."""
FLOATS, INTS = 4, 4
FORWARD_AND_BACKWARD = 3
"""A backward pass takes twice the products of the forward pass."""


@dataclass(frozen=True)
class Stages:
    """Seconds of a mean step by stage."""

    training_thread: float
    classify: float
    staging: float
    up: float
    device: float
    down: float

    def step(self, prefetches: bool) -> float:
        """Seconds of a step, whose stages work at the same time where the policy has batches prepared ahead."""
        seconds = asdict(self).values()
        return max(seconds) if prefetches else sum(seconds)


def stages(tally: StepCounts, dim: int, multiplications: float, costs: DeviceCosts) -> Stages:
    """`multiplications`: of a sample's forward pass through the dense part."""
    steps = max(1, tally.steps)
    samples, lookups, rows = (count / steps for count in (tally.samples, tally.lookups, tally.rows))
    cold_bytes = tally.cold_row_bytes / steps
    copies = costs.copy_us * 1e-6
    integers = CLASSIFY_INTS * INTS * lookups + 5 * INTS * rows
    sort_bytes = SORT_PASSES * SORT_TRAFFIC * 2 * INTS * lookups if costs.classifies else 0.0
    # Forward: a row for each lookup. Backward: a gradient for each. Update: rows and state read and written.
    row_bytes = FLOATS * dim * (2 * lookups + 4 * rows)
    products = 2 * FORWARD_AND_BACKWARD * multiplications * samples
    return Stages(
        training_thread=1e-6
        * (
            EAGER_LAUNCHES * costs.launch_us
            + TRITON_LAUNCHES * costs.triton_launch_us
            + UPLOADS * costs.copy_us
            + WAITS * costs.event_us
            + costs.python_us
        ),
        classify=0.0 if costs.classifies else lookups * costs.classify_ns * 1e-9 / costs.classify_threads,
        staging=HOST_CROSSINGS * cold_bytes / (costs.dram_gbs * 1e9),
        up=2 * copies + (cold_bytes + (INTS * lookups if costs.classifies else integers)) / (costs.up_gbs * 1e9),
        device=DENSE_KERNELS * costs.kernel_us * 1e-6
        + products / (costs.tflops * 1e12)
        + (row_bytes + sort_bytes) / (costs.hbm_gbs * 1e9 * costs.hbm_efficiency),
        down=copies + cold_bytes / (costs.down_gbs * 1e9),
    )
