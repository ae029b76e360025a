"""Fixtures: short runs under any policy, recorded step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.policy import PolicyConfig
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy, StepPlan
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.run_options import RunOptions
from tests.doubles.late_streams import LateStreams
from tests.policies.settings import TINY

STREAMS = {
    "direct": lambda: None,
    "late": lambda: LateStreams(seed=3),
    "cuda": lambda: CudaStreams(torch.device("cuda")),
}


@dataclass
class SeenStep:
    """One step: the plan, whether it was a probe step, and the popular samples, counted row by row."""

    batch: Batch
    plan: StepPlan
    probe: bool
    popular: list[bool]
    hot_U: NDArray[np.bool_]
    capacities: list[int]
    hot_rows: list[int]
    device_bytes: int
    budget_bytes: int


@dataclass
class Watched:
    runtime: Runtime
    steps: list[SeenStep] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples of the stream that the run has to train."""
        source, run = self.runtime.source, self.runtime.config.run
        return min(source.epochs * source.train_samples, run.steps * run.batch_size or 1 << 60)

    @property
    def totals(self) -> dict[str, float]:
        return self.runtime.reports.totals()

    def tables(self) -> list[NDArray[np.floating]]:
        store = self.runtime.store
        return [store.contents.export(index)[0] for index in range(len(store.space.tables))]


def popular_by_hand(work: ClassifiedBatch, runtime: Runtime) -> list[bool]:
    space, batch, slot = runtime.store.space, work.batch, runtime.store.index.placement.slot_of_row
    answer = []
    for sample in range(batch.size):
        rows: list[int] = []
        for feature, first in enumerate(space.feature_first_row.tolist()):
            bag = sample * len(space.features) + feature
            rows += [first + int(i) for i in batch.ids_N[batch.offsets[bag] : batch.offsets[bag + 1]]]
        answer.append(all(slot[row] >= 0 for row in rows))
    return answer


@dataclass
class Plain:
    """The result of plain steps on the same batches."""

    losses: list[float]
    tables: list[NDArray[np.floating]]


Watch = Callable[..., Watched]
World = tuple[list[Batch], tuple[TableSpec, ...], tuple[FeatureSpec, ...]]
Build = Callable[..., Runtime]


@pytest.fixture
def watch(memory_source: Any, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Train under a policy. `world` is (batches, tables, features); without it the stream is synthetic."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(
        policy: str,
        *changes: str,
        device: str = "direct",
        world: World | None = None,
    ) -> Watched:
        config = load_config(None, {}, [*TINY, *(["run.steps=0"] if world else []), *changes, f"knobs.policy={policy}"])
        streams = STREAMS[device]()
        runtime = assemble(config, memory_source(*world, held_out=world[0][:2]) if world else None, streams)
        seen = Watched(runtime)
        plan = runtime.steps.plan

        def watched_plan(work: ClassifiedBatch, probe: bool) -> StepPlan:
            made = plan(work, probe)
            tier = runtime.store.hot.tier
            hot = [len(tier.hot_rows_of(pool)) for pool in range(len(tier.capacities))]
            budget = runtime.knobs.hot_budget_bytes
            popular, taken = popular_by_hand(work, runtime), runtime.store.hot.bytes
            step = SeenStep(work.batch, made, probe, popular, work.hot_U.copy(), tier.capacities, hot, taken, budget)
            seen.steps.append(step)
            return made

        monkeypatch.setattr(runtime.steps, "plan", watched_plan)
        seen.losses = [event.loss for event in runtime.run() if isinstance(event, Snapshot)]
        return seen

    return run


@pytest.fixture(scope="session")
def _plain_runs() -> dict[tuple[int, int], tuple[Plain, World | None]]:
    return {}


@pytest.fixture
def plain(watch: Watch, _plain_runs: dict[tuple[int, int], tuple[Plain, World | None]]) -> Callable[..., Plain]:
    """Train a world, or so many steps without one, under `hybrid`, once. Worlds are kept, so that no other gets the same id."""

    def run(world: World | None = None, steps: int = 48) -> Plain:
        key = id(world), steps
        if key not in _plain_runs:
            seen = watch("hybrid", *([] if world else [f"run.steps={steps}"]), world=world)
            _plain_runs[key] = Plain(seen.losses, seen.tables()), world
        return _plain_runs[key][0]

    return run


@pytest.fixture
def build() -> Build:
    """Build a runtime for a tiny run under a policy, given by name or as an object."""

    def made(policy: str, *changes: str, given: Policy | None = None, folder: Path | None = None) -> Runtime:
        config = load_config(None, {}, [*TINY, *changes, f"knobs.policy={policy}"])
        return assemble(config, policy=given, options=RunOptions(folder))

    return made


# A stream as a policy sees it -----------------------------------------------------------------------------------------


@dataclass
class View:
    """A stream of one epoch of given batches."""

    space: RowSpace
    batches: list[Batch]
    room: list[int]
    options: PolicyConfig = field(default_factory=PolicyConfig)
    now: Knobs = field(default_factory=Knobs)
    batch_size: int = 8
    seed: int = 1
    epochs: range = range(1)

    def knobs(self) -> Knobs:
        return self.now

    def slots(self, pool: int) -> int:
        return self.room[pool]

    def samples(self, epoch: int) -> int:
        return sum(batch.size for batch in self.batches)

    def read(self, epoch: int, batch_size: int | None = None) -> Iterator[Batch]:
        return iter(self.batches)

    def rest(self) -> Iterator[Batch]:
        return iter(self.batches)


def space_of(*tables: tuple[int, int]) -> RowSpace:
    specs = tuple(TableSpec(f"T{i}", rows, dim) for i, (rows, dim) in enumerate(tables))
    return RowSpace.of(specs, tuple(FeatureSpec(f"F{i}", i) for i in range(len(specs))))


def _view(space: RowSpace, room: list[int], random: np.random.Generator, batches: int = 6, **options: Any) -> View:
    made = []
    for _ in range(batches):
        ids = (random.random((8, len(space.features))) ** 2 * space.rows_F).astype(np.int64)
        made.append(Batch.one_hot(np.zeros((8, 1), np.float32), ids, np.zeros(8, np.float32)))
    return View(space, made, room, PolicyConfig(**options))


@pytest.fixture
def stream_view() -> Callable[..., View]:
    """Build a stream of skewed lookups in tables of (rows, dim); `room` is the number of slots of each pool."""
    return lambda tables, room, seed, **options: _view(space_of(*tables), room, np.random.default_rng(seed), **options)
