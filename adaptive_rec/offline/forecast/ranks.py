"""What several processes would do on the batches of a run: bytes, memory and seconds of a rank, and what limits them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.raw.raw_ids import raw_ids_of
from adaptive_rec.data.source import Source
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.memory.dense import optimizer_bytes, parameter_bytes
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.memory.rows import everything_bytes, row_parts, row_type
from adaptive_rec.offline.forecast.arranged import follow
from adaptive_rec.offline.forecast.fitting import with_settings
from adaptive_rec.offline.forecast.hardware import Hardware
from adaptive_rec.offline.forecast.lane import Lane, StepCounts
from adaptive_rec.offline.forecast.passes import Progress
from adaptive_rec.offline.forecast.predict import Workload, multiplications, predict_step_seconds
from adaptive_rec.offline.forecast.replay import stream
from adaptive_rec.offline.forecast.sources import KeptSource
from adaptive_rec.offline.forecast.survey import with_rehearsal
from adaptive_rec.offline.forecast.traffic import NetworkSeconds, Nodes, Sent, count_sent, network_seconds
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import check_group, plan_run
from adaptive_rec.runtime.dense_optimizer import build_dense_optimizer
from adaptive_rec.runtime.parts import RowsOfRank
from adaptive_rec.units import counted, percent, whole

COUNTED_BATCHES, COUNTED_SAMPLES = 64, 1 << 18
"""The first batches of the stream are counted: so many of them, but no more after that many samples."""


@dataclass(frozen=True)
class Processes:
    """Numbers of processes to look at, and the machines (nodes) that they run on."""

    numbers: Sequence[int]
    per_node: int
    network_bytes_per_second: float
    """Of each node; 0 where there is one."""

    def layouts(self) -> list[Nodes]:
        return [Nodes(ranks, self.per_node) for ranks in self.numbers]


@dataclass(frozen=True)
class Forecast:
    """What so many ranks would do in a step."""

    layout: Nodes
    sent: Sent
    rank_bytes: int
    """Memory of a rank's rows, trackers and dense part."""
    network: NetworkSeconds
    work_seconds: float | None
    """A rank's own work; None without a hardware profile."""
    batch_size: int

    @property
    def step_seconds(self) -> float | None:
        return None if self.work_seconds is None else self.work_seconds + self.network.all

    @property
    def samples_per_second(self) -> float | None:
        return self.batch_size / self.step_seconds if self.step_seconds else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "processes": self.layout.ranks,
            "nodes": self.layout.nodes,
            "sent_bytes_per_sample": self.sent.per_sample(),
            "rank_bytes": self.rank_bytes,
            "network_seconds": asdict(self.network),
            "work_seconds": self.work_seconds,
            "step_seconds": self.step_seconds,
            "samples_per_second": self.samples_per_second,
        }


def forecast(
    config: Config, source: Source, wanted: Processes, hardware: Hardware | None, progress: Progress
) -> list[Forecast]:
    """Count the first batches of a run and predict each number of processes. Raises ConfigError where several processes cannot
    train under the configuration."""
    policy = load_policy(config.knobs.policy)
    check_group(config, policy)
    space, layouts = RowSpace.of(source.tables, source.features, policy.request_per_table), wanted.layouts()
    progress("counting what ranks send", 0, 1)
    most = min(COUNTED_BATCHES, -(-COUNTED_SAMPLES // config.run.batch_size))
    batches = list(islice(stream(config, source), most))
    model = build_model(config, space, max(1, source.dense_features), source.sequence)
    gradients = parameter_bytes(config, model)
    dense = 2 * gradients + optimizer_bytes(config, model, build_dense_optimizer, row_type(config))
    sent = count_sent(space, batches, layouts, row_type(config).itemsize, gradients, config.whole_tables)
    work = _work_seconds(config, source, space, batches, layouts, sent, hardware) if hardware else [None] * len(sent)
    lookups = batches[0].lookups if batches else 0
    return [
        Forecast(
            layout, one, dense + _rows_bytes(config, source, layout.ranks, lookups),
            network_seconds(one, layout, len(space.pools), wanted.network_bytes_per_second), seconds, config.run.batch_size,
        )
        for layout, one, seconds in zip(layouts, sent, work, strict=True)
    ]  # fmt: skip


def predicted(
    config: Config, source: Source, wanted: Processes, hardware: Hardware | None, progress: Progress
) -> dict[str, Any]:
    """Return a forecast as plain values."""
    found = forecast(config, source, wanted, hardware, progress)
    return {"batch_size": config.run.batch_size, "numbers": [one.as_dict() for one in found], "limit": limit(found)}


def _rows_bytes(config: Config, source: Source, ranks: int, lookups: int) -> int:
    """Return the bytes of a rank's rows with all that follows from them, and of the raw ids, which each rank has whole."""
    rows = row_parts(config, RowsOfRank(source, ranks), load_policy(config.knobs.policy), "host", lookups).bytes_in("host")
    raw_ids = raw_ids_of(source)
    return rows + (0 if raw_ids is None else raw_ids.most_bytes)


def _work_seconds(
    config: Config, source: Source, space: RowSpace, batches: Sequence[Batch], layouts: Sequence[Nodes],
    sent: Sequence[Sent], hardware: Hardware,
) -> list[float | None]:  # fmt: skip
    """Return the seconds of a rank's own work in a step. Ranks of a machine share its cores."""
    name, forward = config.knobs.policy, multiplications(config, source, space)
    everything = everything_bytes(config, space)
    budgets = [min(config.knobs.hot_budget_bytes * layout.ranks, everything) for layout in layouts]
    lanes = {budget: Lane.of(config, space, name, budget) for budget in budgets}
    if load_policy(name).arranges_stream:
        first = with_settings(config, [("run.steps", len(batches))])
        for lane in lanes.values():
            follow(lane, first, KeptSource(source, space), lambda _: None)
    else:
        for batch in batches:
            work = ClassifiedBatch(batch, space)
            for lane in lanes.values():
                lane.step(work)
    found: list[float | None] = []
    for layout, one, budget in zip(layouts, sent, budgets, strict=True):
        counts = of_rank(lanes[budget].total, layout.ranks, one.lines)
        load = Workload.of(config, source, space, load_policy(name), counts, forward)
        threads = min(config.run.threads or hardware.cores, hardware.cores)
        found.append(predict_step_seconds(load, hardware) * max(1.0, layout.per_node * threads / hardware.cores))
    return found


def of_rank(counts: StepCounts, ranks: int, lines: float) -> StepCounts:
    """Return what one of several ranks does of a process's work. It reads the whole input, and trains its part on the rows that
    it asks for; as the owner of rows it gathers as many `lines` a step, and adds up as many gradients."""
    if ranks == 1:
        return counts
    served = round(lines * counts.steps)
    parts = ("samples", "popular_samples", "counted_rows", "ranked_rows", "listed_rows", "migrated_rows")
    return replace(
        counts,
        lookups=counts.lookups // ranks + served,
        hot_lookups=counts.lookups // ranks + round(served * ratio(counts.hot_lookups, counts.lookups)),
        rows=counts.rows // ranks + served,
        hot_rows=counts.hot_rows // ranks + served,
        **{name: getattr(counts, name) // ranks for name in parts},
    )


def limit(found: Sequence[Forecast]) -> str:
    """Return in a sentence what limits the numbers of processes looked at."""
    first, last = found[0], found[-1]
    ranks = whole(last.layout.ranks)
    if last.step_seconds is None or last.work_seconds is None:
        if not last.network.all:
            return ""
        most = f"so they train no more than {whole(last.batch_size / last.network.all)} samples a second"
        took = f"messages and bytes between {ranks} ranks take {1000 * last.network.all:.1f} ms of a step"
        return f"{took}, most of it {last.network.largest()}, {most}"
    best = max(found, key=lambda one: one.samples_per_second or 0.0)
    network = last.network.all / last.step_seconds
    part = f", most of it {last.network.largest()}" if network > 0.5 else ", the rest is each rank's own work"
    takes = f"messages and bytes between ranks take {percent(network)} of a step{part}"
    if best is not last:
        return f"{counted(best.layout.ranks, 'rank')} would train the most samples a second; with {ranks} {takes}"
    times = (last.samples_per_second or 0.0) / (first.samples_per_second or 1.0)
    more = f"{ranks} would train {times:.1f} times as many samples a second as {counted(first.layout.ranks, 'rank')}"
    return f"{more}; {takes}" if len(found) > 1 else takes


def rank_plan(config: Config, source: Source, layout: Nodes, host_bytes: int, rehearsed: bool) -> MemoryPlan:
    """Return the plan of a rank on a machine with so much host memory, which its ranks share evenly."""
    part = with_settings(config, [("run.batch_size", -(-config.run.batch_size // layout.ranks))])
    plan = plan_run(part, RowsOfRank(source, layout.ranks), {"host": host_bytes // layout.per_node})
    plan = with_rehearsal(part, plan) if rehearsed else plan
    note = f"of one of {layout.ranks:,} ranks, {layout.per_node:,} on a machine; rows on their way between ranks are left out"
    return replace(plan, notes=[note, *plan.notes])
