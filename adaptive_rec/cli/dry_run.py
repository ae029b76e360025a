"""``train --dry-run``: what a run would hold in memory, against what there is. `plan` prints the same, and more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.units import comparable_size, count, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.memory.plan import MemoryPlan

SHOWN_TABLES = 40
"""Of more tables the largest are printed; ``--json`` has them all."""


def dry_run(config: Config, as_json: bool) -> int:
    """Print the plan. Returns 1 where it does not fit."""
    from adaptive_rec.runtime.assemble import plan_run

    plan = plan_run(config)
    if as_json:
        print_json(plan.as_dict())
    else:
        estimate = (
            "what is not known from the rows is estimated; adaptive-rec plan measures it and suggests a hot budget"
        )
        show(*blocks(plan, config), pairs([*verdict(plan), ("note", estimate)]))
    return 1 if plan.problems else 0


def blocks(plan: MemoryPlan, config: Config) -> list[Any]:
    """Tables, hot rows and parts, blank lines between and after them."""
    blank = text("")
    heads = ("table", "rows>", "dim>", "weights>", "optimizer>", "placement>", "all>")
    slots = ("hot rows of", "slots>", "weights>", "optimizer>", "movement>", "all>")
    return [
        pairs(head(plan, config)), blank, columns(heads, tables(plan)), blank, columns(slots, hot_rows(plan)), blank,
        columns(("part", "place", "while", "bytes>", "made smaller by"), parts(plan)), blank,
    ]  # fmt: skip


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


MOMENTS = {"": "always", "step": "a step runs", "window": "a window ends", "evaluation": "an evaluation runs"}


def parts(plan: MemoryPlan) -> Iterator[list[str]]:
    """What takes memory, the largest first."""
    for part in sorted(plan.parts, key=lambda part: -part.bytes):
        if part.bytes:
            name = part.name + (" (in memory now)" if part.held else "")
            yield [name, part.place, MOMENTS[part.moment], size(part.bytes), part.keys]


def verdict(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    for place in plan.available_bytes:
        needed = plan.needed(place)
        yield place, f"{comparable_size(needed)} needed, {comparable_size(needed + plan.free(place))} available"
    for note in plan.notes:
        yield "note", note
    for problem in plan.problems:
        yield "problem", problem
    yield "fits", "no" if plan.problems else "yes"
