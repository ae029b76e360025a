"""The survey of a run that `plan` shows: its memory, useful budgets with their predicted hot lookups, settings that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.open import open_source
from adaptive_rec.memory.plan import HotBytes, MemoryPlan, Place
from adaptive_rec.memory.rows import COPIES, policy_row_bytes
from adaptive_rec.offline.forecast.fitting import Fitting, Remedy
from adaptive_rec.offline.forecast.hardware import Hardware
from adaptive_rec.offline.forecast.homes import Homes, HotLookups, Prediction, homes_of
from adaptive_rec.offline.forecast.passes import Progress
from adaptive_rec.offline.forecast.profile import measure
from adaptive_rec.offline.forecast.rehearsal import TABLES_BYTES, rehearse
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import plan_run
from adaptive_rec.system.host_memory import available_bytes

WINDOWS = 10
"""Parts of the samples: the counts of the earlier ones predict the later ones."""

PROFILED_BYTES = 64
"""Memory per row of the tables while lookups are counted; `profile` needs less, and up to 40 per row that is looked up."""


@dataclass(frozen=True)
class Budget:
    """A hot budget with the reasons for it."""

    why: list[str]
    bytes: int
    hot: list[HotBytes]
    predicted: Prediction | None
    fits: bool


@dataclass(frozen=True)
class Survey:
    """The plan of a run with budgets and remedies."""

    plan: MemoryPlan
    budgets: list[Budget]
    suggested_bytes: int | None
    """Suggested budget; None where the policy ignores the budget or nothing is known about the lookups."""
    remedies: list[Remedy]
    basis: str
    """The data that predictions are based on, in words."""
    all_rows_bytes: int
    homes: Homes | None = None
    """Where rows are, for a run with a disk."""
    everything_fits: bool = False
    """Whether the hot tier may be as large as all rows. False also where the policy ignores the budget."""

    def as_dict(self) -> dict[str, Any]:
        budgets = [
            {
                "why": one.why,
                "bytes": one.bytes,
                "slots": [pool.slots for pool in one.hot],
                "fits": one.fits,
                **(asdict(one.predicted) if one.predicted else {"learned_ratio": None, "known_ratio": None, "cold_rows": None}),
            }
            for one in self.budgets
        ]
        remedies = [
            {"set": {key: value for key, value in remedy.settings}, "needed_bytes": remedy.needed_bytes}
            for remedy in self.remedies
        ]
        return {
            **self.plan.as_dict(),
            "budgets": budgets,
            "suggested_budget_bytes": self.suggested_bytes,
            "all_rows_bytes": self.all_rows_bytes,
            "everything_fits": self.everything_fits,
            "predicted_from": self.basis,
            "homes": self.homes.as_dict() if self.homes else None,
            "remedies": remedies,
        }


def survey(
    config: Config,
    memory: dict[Place, int] | None,
    profile: Path | None,
    samples: int | None,
    rehearsed: bool,
    hardware: Hardware | None,
    progress: Progress,
) -> Survey:
    """Plan, rehearse, count and predict. `memory` is as for `plan_run`; without a profile, the first `samples` are counted
    (0: none; None: all). `hardware` has the costs of a step, for a run with rows on a disk."""
    source = open_source(config)
    sizes = policy_row_bytes(config, RowSpace.of(source.tables, source.features))
    read = None if profile is None else HotLookups.read(profile, sizes)
    plan = plan_run(config, source, memory)
    if rehearsed:
        plan = with_rehearsal(config, plan)
    fitting = Fitting(config, source, plan)
    remedies = fitting.remedies()
    if not fitting.obeys_budget:
        return Survey(plan, [], None, remedies, "", fitting.everything_bytes())
    most = fitting.largest_budget()
    lookups, basis = (read, _described(read, fitting)) if read else _counted(fitting, sizes, samples, most, progress)
    named, enough = {"configured": config.knobs.hot_budget_bytes}, None
    everything = fitting.everything_bytes()
    fits = not fitting.with_settings([("knobs.hot_budget_bytes", most)]).problems
    if fits:
        named["most that fits"] = most
        if lookups is not None:
            enough = named["suggested"] = min(lookups.suggested_bytes, most)
    budgets = list(_budgets(fitting, named, lookups))
    homes = homes_of(config, source, plan, lookups, hardware) if config.run.host_memory else None
    return Survey(plan, budgets, enough, remedies, basis, everything, homes, fits and most == everything)


def with_rehearsal(config: Config, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with measured figures, if it is for a CPU and there is enough memory for a rehearsal."""
    if "device" in plan.available_bytes:
        note = "what a device and its batches take is worked out, not measured; CUDA's libraries in host memory are left out"
        return replace(plan, notes=[*plan.notes, note])
    room, free = plan.needed("host") - of_rows(plan) + 2 * TABLES_BYTES, available_bytes()
    if room > free:
        short = f"a rehearsal takes about {room >> 20:,} MiB, {free >> 20:,} MiB are free here"
        return replace(plan, notes=[*plan.notes, f"not rehearsed, so all but the rows is an estimate: {short}"])
    return rehearse(config, plan)


def of_rows(plan: MemoryPlan) -> int:
    """Return the memory known without a rehearsal, except copies, which the rehearsal makes in full size."""
    return sum(part.bytes for part in plan.parts if part.of_rows and part.name != COPIES)


def _described(read: HotLookups, fitting: Fitting) -> str:
    """Describe a given profile."""
    rows = sum(table.rows for table in fitting.source.tables)
    other = "" if read.rows == rows else f", of tables of {read.rows:,} rows where the run's have {rows:,}"
    return f"a profile of {read.samples:,} samples{other}"


def _counted(
    fitting: Fitting, sizes: list[int], samples: int | None, most: int, progress: Progress
) -> tuple[HotLookups | None, str]:
    """Return the curve of the first samples, and its description."""
    source, rows = fitting.source, sum(table.rows for table in fitting.source.tables)
    wanted = source.train_samples if samples is None else min(samples, source.train_samples)
    if wanted < WINDOWS:
        return None, ""
    if PROFILED_BYTES * rows > available_bytes():
        return None, f"nothing: counting lookups of {rows:,} rows takes more memory than is free here"
    made = measure(fitting.config, wanted, WINDOWS, progress, source, [most])
    counted, whole = made["data"]["samples"], source.train_samples
    part = "all" if counted == whole else f"the first {counted:,} of"
    return HotLookups(made, sizes), f"{part} {whole:,} samples of the run's own stream, counted just now"


def _budgets(fitting: Fitting, named: dict[str, int], lookups: HotLookups | None) -> Iterator[Budget]:
    """Yield each of the named sizes once, rising."""
    for size in sorted({size for size in named.values() if size > 0}):
        plan = fitting.with_settings([("knobs.hot_budget_bytes", size)])
        why = [name for name, named_bytes in named.items() if named_bytes == size]
        predicted = lookups.at(sum(pool.bytes for pool in plan.hot)) if lookups else None
        yield Budget(why, size, plan.hot, predicted, not plan.problems)
