"""``train --dry-run``: what a run would hold in memory, against what there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from adaptive_rec.commands.figures import count, size, whole
from adaptive_rec.commands.output import columns, pairs, print_json, show, text

if TYPE_CHECKING:
    from adaptive_rec.config import Config
    from adaptive_rec.memory_plan import MemoryPlan

SHOWN_TABLES = 40
"""Of more tables the largest are printed; ``--json`` has them all."""


def dry_run(config: Config, as_json: bool) -> int:
    """Print the plan. Returns 1 where it does not fit."""
    from adaptive_rec.assemble import plan_run

    plan = plan_run(config)
    if as_json:
        print_json(plan.as_dict())
    else:
        blank = text("")
        heads = ("table", "rows>", "dim>", "weights>", "optimizer>", "placement>", "all>")
        slots = ("hot rows of", "slots>", "weights>", "optimizer>", "movement>", "all>")
        show(
            pairs(head(plan, config)), blank, columns(heads, tables(plan)), blank, columns(slots, hot_rows(plan)), blank,
            columns(("part", "place", "bytes>", "made smaller by"), parts(plan)), blank, pairs(verdict(plan)),
        )  # fmt: skip
    return 1 if plan.problems else 0


def head(plan: MemoryPlan, config: Config) -> list[tuple[str, str]]:
    rows = count(sum(table.rows for table in plan.tables))
    precision = config.run.row_precision if config.run.precision != "float64" else "float64"
    return [
        ("run", f"{plan.policy} on {plan.device}, batches of {whole(config.run.batch_size)}"),
        ("tables", f"{len(plan.tables)} tables, {rows} rows in {precision}, {config.optimizer.embedding}"),
    ]


def tables(plan: MemoryPlan) -> Iterator[list[str]]:
    """A line for each table, the last one for all together."""
    largest = sorted(plan.tables, key=lambda table: -table.weights_bytes)[:SHOWN_TABLES]
    for table in plan.tables:
        if table in largest:
            sizes = (table.weights_bytes, table.state_bytes, table.placement_bytes)
            yield [table.name, count(table.rows), str(table.dim), *map(size, (*sizes, sum(sizes)))]
    sums = [sum(getattr(t, f"{name}_bytes") for t in plan.tables) for name in ("weights", "state", "placement")]
    rows = count(sum(table.rows for table in plan.tables))
    yield [f"all {len(plan.tables)}", rows, "", *map(size, (*sums, sum(sums)))]


def hot_rows(plan: MemoryPlan) -> Iterator[list[str]]:
    for pool in plan.hot:
        sizes = (pool.weights_bytes, pool.state_bytes, pool.movement_bytes, pool.bytes)
        yield [f"{count(pool.rows)} rows of dim {pool.dim}", count(pool.slots), *map(size, sizes)]


def parts(plan: MemoryPlan) -> Iterator[list[str]]:
    """What takes memory, the largest first."""
    for part in sorted(plan.parts, key=lambda part: -part.bytes):
        if part.bytes:
            yield [part.name + (" (in memory now)" if part.held else ""), part.place, size(part.bytes), part.keys]


def verdict(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    for place, available in plan.available_bytes.items():
        yield place, f"{size(plan.needed(place))} needed, {size(available)} available"
    for problem in plan.problems:
        yield "problem", problem
    yield "fits", "no" if plan.problems else "yes; what the layers of the dense part keep during a step is not counted"
