"""A run of ours that can be driven some steps at a time, and what every contestant of a comparison offers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.replayed import BUCKETS, ReplayedDense
from adaptive_rec.embedding.device import all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.live.telemetry import Event, StageTimes
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from benchmarks.common.shapes import touch


@dataclass(frozen=True)
class Where:
    """The device, real or rehearsed."""

    device: torch.device
    rehearsal: str = ""
    """How it is rehearsed: `cpu` is the path of CPU runs, `fake` the device path over host memory; empty on a GPU."""

    def streams(self, seed: int = 1) -> Any:
        """The device to give to `assemble`; None lets it choose."""
        if self.rehearsal != "fake":
            return None
        from tests.doubles.late_streams import LateStreams

        return LateStreams(seed)

    @property
    def settings(self) -> tuple[str, ...]:
        return ("run.device=cpu", "run.threads=1") if self.rehearsal else ("run.device=cuda",)

    def sync(self) -> None:
        """Return when the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def memory_bytes(self) -> int:
        """Device memory that this process's tensors take."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def used_bytes(self) -> int:
        """Device memory in use by whatever: what torch has reserved, graphs and the context included."""
        if self.device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free


class Contestant(Protocol):
    name: str
    window_steps: int
    """Steps after which its work repeats, reclassification included; a turn is a multiple of them where time allows."""

    @property
    def steps(self) -> int: ...

    def drive(self, steps: int) -> int:
        """Train at least so many steps; return how many it were."""

    def counters(self) -> dict[str, float]:
        """Totals that only grow; `samples` at least."""

    def facts(self) -> dict[str, Any]:
        """What there is to know besides."""

    def settle(self) -> None:
        """Return when everything that was asked for is done, on the device and on the way back from it."""

    def close(self) -> None: ...


def budget_bytes(config: Config, source: Source, rows_ratio: float) -> int:
    """Device bytes in which a share of all rows fits, with their optimizer state and what the policy keeps of them."""
    policy = load_policy(config.knobs.policy)
    space = RowSpace.of(source.tables, source.features)
    dtype = torch.float64 if config.run.precision == "float64" else torch.float32
    sizes = row_bytes(space, RowRule.of(config.optimizer), dtype.itemsize, policy.tracks_movement)
    return int(rows_ratio * all_rows_bytes(space, sizes))


TURN = Event(0, "turn", "it may end here")


class Driven:
    """A training run, driven through `Runtime.run` as the command line does."""

    def __init__(
        self, config: Config, source: Source, streams: Any, budget_bytes: int | None, times: StageTimes | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        """Without a budget the policy has what it wants. `streams` and `more` are given to `assemble`."""
        if budget_bytes is not None:
            # One reclassification may fill the budget: how long filling takes is no figure of these benchmarks.
            moved = max(config.knobs.max_moved_bytes, budget_bytes)
            knobs = config.knobs.changed({"hot_budget_bytes": budget_bytes, "max_moved_bytes": moved})
            config = config.model_copy(update={"knobs": knobs})
        more.setdefault("options", RunOptions(times=times))
        self.runtime = assemble(config, source=source, streams=streams, **more)
        if more["options"].rows is None:
            _touch_state(self.runtime.store)
        self.window_steps = config.knobs.reclassify_every if self.runtime.policy.tracks_popularity else 1
        self._trial: Event | None = None
        self._exactly = False
        self._reports: Iterator[Any] = self.runtime.run()

    def end_turns_exactly(self) -> None:
        """Have turns end with the step that is asked for, after all that lies between it and the next one."""
        boundary, self._exactly = self.runtime.boundary, True

        def stopping() -> Iterator[Any]:
            yield from boundary()
            yield TURN

        self.runtime.boundary = stopping  # type: ignore[method-assign]

    @property
    def steps(self) -> int:
        return int(self.runtime.step_number)

    def drive(self, steps: int) -> int:
        """Up to the first report after so many steps. The device may be some steps behind then."""
        began, report = self.steps, None
        while self.steps < began + steps or (self._exactly and report is not TURN):
            report = next(self._reports)
            if isinstance(report, Event) and report.kind == "split":
                self._trial = report
        return self.steps - began

    def finish(self) -> None:
        """Wait until what the run works ahead, and counts behind, is done."""
        assert self.runtime.pipeline is not None
        self.runtime.pipeline.settle()
        self.runtime.observer.settle()

    def close(self) -> None:
        close = getattr(self._reports, "close", None)
        if close is not None:
            close()


class Ours(Driven):
    """A run on a device, real or rehearsed, with what there is to know of it."""

    def __init__(
        self,
        name: str,
        config: Config,
        source: Source,
        where: Where,
        budget_bytes: int | None,
        times: StageTimes | None = None,
    ) -> None:
        """`times` replaces the run's own clock of its stages."""
        self.name = name
        before, began = where.memory_bytes(), time.perf_counter()
        super().__init__(config, source, where.streams(config.run.seed), budget_bytes, times)
        self._where = where
        self.drive(1)
        if isinstance(self.runtime.dense, ReplayedDense):
            record_all_sizes(self.runtime)  # else a turn would pay for it
        self._setup_seconds = time.perf_counter() - began
        self._memory_bytes = where.memory_bytes() - before
        self._budget_bytes = budget_bytes or 0

    def settle(self) -> None:
        self.runtime.store.settle()
        self._where.sync()

    def counters(self) -> dict[str, float]:
        totals = dict(self.runtime.reports.totals())
        return {**totals, "samples": totals["samples_seen"], "wait_seconds": self.runtime.times.seconds["wait"]}

    @property
    def undecided(self) -> bool:
        """Whether the run still has to try what is quicker, whole batches or split ones."""
        return self.runtime.policy.tracks_popularity and self.runtime.splitting.measured and self._trial is None

    def split(self) -> str:
        """How its steps are run."""
        if not self.runtime.policy.tracks_popularity:
            return "whole"
        if self.undecided:
            return "not chosen yet"
        if self._trial is None:
            return "split" if self.runtime.splitting.chosen else "whole"
        found = self._trial.details
        whole, split = (1e3 * found[f"{way}_seconds"] for way in ("whole", "split"))
        return f"chose {'split' if found['split'] else 'whole'} ({whole:.2f} ms whole, {split:.2f} split)"

    def facts(self) -> dict[str, Any]:
        store = self.runtime.store
        return {
            "policy": self.runtime.knobs.policy,
            "optimizer": self.runtime.config.optimizer.embedding,
            "budget_bytes": self._budget_bytes,
            "device_tier_bytes": store.hot.bytes,
            "memory_bytes_at_start": self._memory_bytes,
            "hot_rows": store.hot.tier.hot_rows,
            "rows": store.space.rows,
            "split": self.split(),
            "setup_seconds": self._setup_seconds,
            "stage_seconds": dict(self.runtime.times.seconds),
            "steps": self.steps,
        }

    def close(self) -> None:
        super().close()
        self._where.sync()


def record_all_sizes(runtime: Runtime) -> None:
    """Have the dense part record every size of micro-batch there may be, over lines that are all padding. Between steps."""
    batch_size = runtime.config.run.batch_size
    for eighth in range(1, BUCKETS + 1):
        runtime.dense.begin_step()
        micro = runtime.dense.inputs(max(1, batch_size * eighth // BUCKETS))
        for tensor in (micro.dense_SX, micro.labels_S, micro.scale_S, *micro.pooled):
            runtime.store.hot.launch(tensor.zero_)
        runtime.dense.run(micro)
    runtime.dense.begin_step()
    runtime.store.settle()


def _touch_state(store: Any) -> None:
    """Optimizer state begins as pages that the system has promised only; a long run has them all."""
    for state in store.cold.types.state:
        if state.size:
            touch(state)
