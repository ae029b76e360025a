"""Stated figures of a machine with a CUDA device."""

from __future__ import annotations

from adaptive_rec.config.knobs import Frozen, knob


class DeviceCosts(Frozen):
    """What a device, its link and its host do at best, and what calls cost; all 0 where there is none."""

    launch_us: float = knob(0.0, "us/launch", "An eager kernel of torch, on the training thread.", ge=0)
    triton_launch_us: float = knob(0.0, "us/launch", "A kernel of Triton, on the training thread.", ge=0)
    copy_us: float = knob(0.0, "us/copy", "Queueing a copy, however small.", ge=0)
    event_us: float = knob(0.0, "us/event", "Recording an event or waiting for one, on the training thread.", ge=0)
    python_us: float = knob(0.0, "us/step", "All else that the training thread does in a step.", ge=0)
    kernel_us: float = knob(0.0, "us/kernel", "A recorded kernel, however small.", ge=0)
    up_gbs: float = knob(0.0, "10^9 bytes/s", "Copies from pinned host memory to the device.", ge=0)
    down_gbs: float = knob(0.0, "10^9 bytes/s", "Copies back.", ge=0)
    hbm_gbs: float = knob(0.0, "10^9 bytes/s", "The device's memory, bytes read and written.", ge=0)
    hbm_efficiency: float = knob(
        1.0, "ratio", "Share of it that reading and writing scattered rows reaches.", gt=0, le=1
    )
    dram_gbs: float = knob(0.0, "10^9 bytes/s", "Host memory, for scattered rows, all copying threads together.", ge=0)
    tflops: float = knob(0.0, "10^12/s", "Operations of the dense part's matrix products, in its precision.", ge=0)
    classify_ns: float = knob(
        0.0, "ns/lookup", "Finding distinct rows and segments on a core of the host; 0: the device sorts.", ge=0
    )
    classify_threads: int = knob(1, "threads", "Threads that classify batches ahead.", ge=1)

    @property
    def classifies(self) -> bool:
        """Whether the device finds distinct rows."""
        return self.classify_ns == 0
