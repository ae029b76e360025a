"""A profile of some steps: which copies, kernels and work of the host happen at the same time."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from adaptive_rec.embedding.cold.copier import RowCopier
from adaptive_rec.live.telemetry import StageTimes
from benchmarks.common.contestants import Ours, Where
from benchmarks.gpu.intervals import Intervals, cut, device_kinds, marks, overlap

PROFILED_STEPS = 30
WARM_WINDOWS = 2
"""Before a profile. The first one has no hot rows yet."""
MARK = "benchmark mark"
LANES = ("load", "classify", "gather", "up", "kernels", "down", "scatter", "training thread")


class HostLog(StageTimes):
    """A run's stage times that are also kept one by one, in seconds of `perf_counter`."""

    def __init__(self) -> None:
        super().__init__()
        self.intervals: dict[str, Intervals] = defaultdict(list)
        self.gathers: list[float] = []
        """When the training thread began to gather, once for each micro-batch."""
        self._trainer = threading.current_thread()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:  # type: ignore[override]
        start = time.perf_counter()
        with super().__call__(stage):
            yield
        on_trainer = threading.current_thread() is self._trainer
        if on_trainer and stage == "gather":
            self.gathers.append(start)
        lane = "training thread" if on_trainer and stage != "wait" else stage
        self.intervals[lane].append((start, time.perf_counter()))

    def watched(self, lane: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that keeps the intervals of its calls."""

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.intervals[lane].append((start, time.perf_counter()))

        return timed


def record(make: Callable[..., Any], where: Where, out: Path, name: str, until: float) -> dict[str, Any]:
    """Warm one contestant until `until`, or as long as it takes, and profile it."""
    quiet_profiler(where)
    warm_profiler(where)
    log = HostLog()
    ours = make(times=log)
    assert isinstance(ours, Ours)
    try:
        warm(ours, until - reserve(where))
        steps = 6 if where.rehearsal else PROFILED_STEPS
        plain = timed(ours, where, steps)
        log.intervals.clear()
        found: dict[str, Any] = {"steps_before": ours.steps, "windows_before": ours.steps // ours.window_steps}
        version = ours.runtime.store.index.placement.version
        with watching_rows(log):
            trace, profiled, span = profiled_steps(ours, where, steps)
        kinds = kinds_of(trace, log, span, where)
        found |= {**overlap(kinds), "seconds_per_step": plain, "seconds_per_step_profiled": profiled}
        found["steps"] = round((span[1] - span[0]) / profiled)
        found["micro_batches_per_step"] = sum(at >= span[0] for at in log.gathers) / found["steps"]
        found["placements_changed"] = ours.runtime.store.index.placement.version - version
        found["split"] = ours.split()
        found["files"] = write(trace, name, out)
    finally:
        ours.close()
    return found


def warm(ours: Ours, until: float) -> None:
    """Have hot rows found, and what is quicker tried, where the run tries that."""
    while time.perf_counter() < until or ours.steps < WARM_WINDOWS * ours.window_steps or ours.undecided:
        ours.drive(1)


def quiet_profiler(where: Where) -> None:
    """A rehearsal starts it many times, and it tells each time that it did. Read when it is first started."""
    if where.rehearsal:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def warm_profiler(where: Where) -> None:
    """Profilers want to have been started once before graphs are recorded, and the first start takes seconds."""
    with profile(activities=activities(where)):
        torch.zeros(1, device=where.device).add_(1)
        where.sync()


def activities(where: Where) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if where.device.type == "cuda" else [])


def reserve(where: Where) -> float:
    """Seconds to keep for the profile itself."""
    return 1.0 if where.rehearsal else 6.0


@contextmanager
def watching_rows(log: HostLog) -> Iterator[None]:
    """Keep when rows are read from the host tier and put back into it, on whatever thread."""
    gather, scatter = RowCopier.gather, RowCopier.scatter
    RowCopier.gather = log.watched("gather", gather)  # type: ignore[method-assign]
    RowCopier.scatter = log.watched("scatter", scatter)  # type: ignore[method-assign]
    try:
        yield
    finally:
        RowCopier.gather, RowCopier.scatter = gather, scatter  # type: ignore[method-assign]


def timed(ours: Ours, where: Where, steps: int) -> float:
    ours.drive(1)
    ours.settle()
    began = time.perf_counter()
    done = ours.drive(steps)
    ours.settle()
    return (time.perf_counter() - began) / done


def profiled_steps(ours: Ours, where: Where, steps: int) -> tuple[dict[str, Any], float, tuple[float, float]]:
    """The trace with its clock brought to `perf_counter`, seconds of a step under the profiler, and the span."""
    ours.settle()
    with profile(activities=activities(where)) as profiler:
        began = time.perf_counter()
        with record_function(MARK):
            pass
        done = ours.drive(steps)
        ours.settle()
        ended = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    seen = marks(trace, MARK)
    trace["benchClockOffsetSeconds"] = began - seen[0] if seen else 0.0
    return trace, (ended - began) / done, (began, ended)


def kinds_of(trace: dict[str, Any], log: HostLog, span: tuple[float, float], where: Where) -> dict[str, Intervals]:
    """Everything by kind, in seconds from the profile's beginning."""
    began, ended = span
    offset = trace["benchClockOffsetSeconds"]
    kinds = {kind: [(a + offset, b + offset) for a, b in found] for kind, found in device_kinds(trace).items()}
    host = dict(log.intervals)
    if where.device.type != "cuda":  # a rehearsal: what the training thread does stands for the device's computation
        kinds["kernels"] = host.get("training thread", [])
    kinds |= {lane: host[lane] for lane in LANES if lane in host}
    return {kind: [(a - began, b - began) for a, b in cut(found, began, ended)] for kind, found in kinds.items()}


def write(trace: dict[str, Any], name: str, out: Path) -> list[str]:
    """Write the profiler's trace, gzipped, which Perfetto shows."""
    file_name = "".join(letter if letter.isalnum() else "-" for letter in name) + ".json.gz"
    with gzip.open(out / file_name, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    return [file_name]
