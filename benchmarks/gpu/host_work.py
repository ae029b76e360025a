"""The host work of a step on the training thread of a device run: CPU time and calls, on a device that does nothing.

`python -m benchmarks.gpu.host_work --shape kaggle --batch 2048 --set run.classify=device` prints one line of JSON. Computation is
counted and left out, and so are the training thread's copies, so the time is that of Python and NumPy alone; a call of a real
device adds some microseconds. Work of the side queue and what workers wait for is real, as its results decide which rows travel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.finite import CheckedLate
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.kernels import batch_lists
from adaptive_rec.runtime.assemble import assemble
from benchmarks.common.shapes import SHAPES, configure, open_shape, preload


def nothing() -> None:
    """The event of whatever is left out or done at once: waiting for it does nothing."""


class IdleStreams:
    """A device that does nothing, and counts the calls of the thread that made it."""

    def __init__(self) -> None:
        self.device, self.kernels = torch.device("cpu"), ModuleType("none: computation is left out")
        # Work of the side queue is real.
        self.kernels.find_lists = batch_lists.find_lists  # type: ignore[attr-defined]
        self.kernels.find_places = batch_lists.find_places  # type: ignore[attr-defined]
        self.calls: Counter[str] = Counter()
        self._training = threading.get_ident()
        self._aside = threading.Lock()

    def _count(self, name: str) -> bool:
        """Count a call. Returns whether it is the training thread's."""
        own = threading.get_ident() == self._training
        if own:
            self.calls[name] += 1
        return own

    def pinned(self, nbytes: int) -> Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    allocate = pinned

    def peak_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 62

    def trim(self) -> None: ...

    def share(self, memory: Tensor) -> None: ...

    unshare = share

    def launch(self, work: Callable[[], object]) -> None:
        self._count("launch")

    def upload(self, to_device: Tensor, from_host: Tensor, after: Any, urgent: bool = False) -> Callable[[], object]:
        if not self._count("upload"):
            to_device.copy_(from_host)
        return nothing

    def download(self, to_host: Tensor, from_device: Tensor, after: Any = None) -> Callable[[], object]:
        self._count("download")
        return nothing

    def up_waits(self, event: Any, urgent: bool = False) -> None:
        self._count("wait")

    def launch_aside(self, work: Callable[[], object], after: Any = None) -> Callable[[], object]:
        self._count("launch_aside")
        with self._aside:
            work()
        return nothing

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        return work

    def download_aside(self, copies: list[tuple[Tensor, Tensor]]) -> Callable[[], object]:
        self._count("download_aside")
        return lambda: [to_host.copy_(from_device) for to_host, from_device in copies]  # by whoever waits for it

    def compute_waits(self, event: Any) -> None:
        self._count("wait")

    def compute_event(self) -> Callable[[], object]:
        self._count("event")
        return nothing

    def host_waits(self, event: Callable[[], object]) -> None:
        event()

    def has_happened(self, event: Any) -> bool:
        return True

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        return work


def measure(shape: str, batch: int, steps: int, settings: list[str]) -> dict[str, Any]:
    """Train `steps` steps, the first half to warm up. Returns milliseconds and calls of a step, with all that follows it."""
    small = ["run.device=cpu", "run.threads=1", "model.embedding_dim=4", "run.split=never", "knobs.hot_budget_bytes=64MiB"]
    config = configure(SHAPES[shape], batch, (*small, f"run.steps={steps}", *settings), None)
    source = preload(open_shape(SHAPES[shape], config), config, 4)
    streams = IdleStreams()
    runtime = assemble(config, source, streams)  # type: ignore[arg-type]
    marks, make, check = [], runtime.steps.make, runtime.finite
    assert isinstance(check, CheckedLate)

    def all_sound(fetched: Fetched) -> None:
        # A device that computes counts the steps that were sound; without a count, each step would ask for it anew.
        fetched.array()
        check._coming = None
        check._steps.clear()

    check._judge = all_sound  # type: ignore[method-assign]

    def marked(work: ClassifiedBatch, probe: bool) -> None:
        make(work, probe)
        marks.append((time.thread_time(), Counter(streams.calls)))

    runtime.steps.make = marked  # type: ignore[method-assign]
    for _ in runtime.run():
        pass
    first, last = marks[steps // 2][1], marks[-1][1]
    seconds = [after[0] - before[0] for before, after in pairwise(marks[steps // 2 :])]
    return {
        "shape": shape, "batch": batch, "lookups": source.batches[0].lookups, "settings": settings, "steps": len(seconds),
        "median_ms": round(1000 * statistics.median(seconds), 3), "mean_ms": round(1000 * statistics.mean(seconds), 3),
        "calls": {name: round((last - first)[name] / len(seconds), 2) for name in last - first},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="kaggle", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    print(json.dumps(measure(given.shape, given.batch, given.steps, given.set)))


if __name__ == "__main__":
    main()
