"""The memory of one rank of several: its rows, its own hot budget, its part of each batch, and the dense part whole."""

from __future__ import annotations

from dataclasses import replace

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.offline.forecast.fitting import with_settings
from adaptive_rec.offline.forecast.survey import with_rehearsal
from adaptive_rec.offline.forecast.traffic import Nodes
from adaptive_rec.runtime.assemble import plan_run
from adaptive_rec.runtime.parts import RowsOfRank


def rank_plan(config: Config, source: Source, layout: Nodes, host_bytes: int, rehearsed: bool) -> MemoryPlan:
    """Return the plan of a rank on a machine with so much host memory, which its ranks share evenly."""
    part = with_settings(config, [("run.batch_size", -(-config.run.batch_size // layout.ranks))])
    plan = plan_run(part, RowsOfRank(source, layout.ranks), {"host": host_bytes // layout.per_node})
    plan = with_rehearsal(part, plan) if rehearsed else plan
    note = f"of one of {layout.ranks:,} ranks, {layout.per_node:,} on a machine; rows on their way between ranks are left out"
    return replace(plan, notes=[note, *plan.notes])
