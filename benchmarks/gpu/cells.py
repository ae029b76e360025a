"""What is measured, in the order of importance, and how many seconds each part may take.

A cell runs in a process of its own: a fault of the device in one does not end the others, and its memory is free afterwards.
Its contestants share that process and take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from adaptive_rec.config import Config
from adaptive_rec.data.source import Source
from benchmarks.gpu import correctness
from benchmarks.gpu.apart import Apart
from benchmarks.gpu.ceilings import measure_ceilings
from benchmarks.gpu.contestants import Contestant, Ours, Where
from benchmarks.gpu.measure import compare, memory_growth
from benchmarks.gpu.plan import Cell
from benchmarks.gpu.rivals import FbgemmCaching, PlainHybrid
from benchmarks.gpu.shapes import SHAPES, Preloaded, configure, open_shape, preload, quick_tables
from benchmarks.gpu.timeline import record

Note = Callable[[str], None]

BIG_BATCH_REPORT_STEPS = 10
PRELOADED_STEPS = 1500


@dataclass(frozen=True)
class Context:
    """What every cell needs besides its own description."""

    where: Where
    deadline: float
    """Of `time.perf_counter`."""
    data: str | None
    """A Criteo TSV file, or none: synthetic samples."""
    out: str
    note: Note
    apart: list[str] | None = None
    """Arguments for the processes of rivals; none: they run in this one."""


def run_cell(cell: Cell, context: Context) -> dict[str, Any]:
    quick_tables()
    kinds = {
        "correctness": lambda: correctness.check(context.where, context.deadline, context.note),
        "ceilings": lambda: measure_ceilings(context.where),
        "comparison": lambda: comparison(cell, context),
        "timeline": lambda: timeline(cell, context),
        "memory": lambda: memory(cell, context),
    }
    return kinds[cell.kind]()


def settings_of(cell: Cell, where: Where, **more: Any) -> tuple[str, ...]:
    chosen = {"optimizer.embedding": cell.rule, **more}
    if where.rehearsal:
        chosen |= {"knobs.report_every": 2, "knobs.reclassify_every": 6, "run.split": "always"} | more
    elif cell.batch_size >= 8192:
        chosen |= {"knobs.report_every": BIG_BATCH_REPORT_STEPS}
    return (*where.settings, *(f"{key}={value}" for key, value in chosen.items()))


def config_of(cell: Cell, context: Context, **more: Any) -> Config:
    shape = SHAPES[cell.shape]
    return configure(shape, cell.batch_size, settings_of(cell, context.where, **more), context.data)


def source_of(cell: Cell, context: Context) -> Source:
    config = config_of(cell, context)
    source = open_shape(SHAPES[cell.shape], config)
    if not cell.preloaded:
        return source
    return preload(source, config, 20 if context.where.rehearsal else PRELOADED_STEPS)


def comparison(cell: Cell, context: Context) -> dict[str, Any]:
    source = source_of(cell, context)
    makers: dict[str, Callable[[], Contestant]] = {}
    absent: dict[str, str] = {}
    for name in cell.contestants:
        make, why_not = maker(name, cell, context, source)
        if why_not:
            absent[name] = why_not
        else:
            makers[name] = make
    result = compare(makers, context.where, context.deadline, context.note)
    result["absent"] = absent
    result["preloaded_batches"] = len(source) if isinstance(source, Preloaded) else 0
    result["shape"] = about(cell, context, source)
    return result


def about(cell: Cell, context: Context, source: Source) -> dict[str, Any]:
    """What the floor of a step is reckoned from."""
    model = config_of(cell, context).model
    features, dim = len(source.features), model.embedding_dim
    vectors = features + 1
    bottom = [source.dense_features, *model.bottom_mlp, dim]
    top = [dim + vectors * (vectors - 1) // 2, *model.top_mlp, 1]
    products = sum(a * b for widths in (bottom, top) for a, b in zip(widths[:-1], widths[1:], strict=True))
    return {
        "about": SHAPES[cell.shape].about,
        "dim": dim,
        "rows": sum(table.rows for table in source.tables),
        "flops_per_sample": 6 * (products + vectors * vectors * dim),
        "batch_size": cell.batch_size,
        "loading": "preloaded" if cell.preloaded else (context.data or "synthetic, made as it is read"),
    }


def maker(name: str, cell: Cell, context: Context, source: Source) -> tuple[Callable[[], Contestant], str]:
    """How a contestant is made, or why it cannot take part. `POLICY[:ACTION][/never][+RULE]`, or a rival's name."""
    word, _, rule = name.partition("+")
    rule = rule or cell.rule
    word, never = word.removesuffix("/never"), word.endswith("/never")
    policy, _, action = word.partition(":")
    more: dict[str, Any] = {"optimizer.embedding": rule}
    if never:
        more["run.split"] = "never"
    config = config_of(cell, context, **more)
    if policy in ("plain", "fbgemm"):
        why_not = FbgemmCaching.why_not(context.where, config) if policy == "fbgemm" else ""
        if context.apart:
            return partial(Apart, name, context.apart), why_not
        if policy == "plain":
            return partial(PlainHybrid, name, config, source, context.where), why_not
        return partial(FbgemmCaching, name, config, source, context.where, cell.rows_ratio), why_not
    more["knobs.policy"] = policy
    if action:
        more["knobs.action"] = action
    budget = None if policy in ("device_only", "hybrid") else cell.rows_ratio
    return partial(Ours, name, config_of(cell, context, **more), source, context.where, budget), ""


def make_rival(name: str, cell: Cell, context: Context) -> Contestant:
    """A rival in the process that was started for it."""
    make, why_not = maker(name, cell, replace(context, apart=None), source_of(cell, context))
    if why_not:
        raise RuntimeError(why_not)
    return make()


def timeline(cell: Cell, context: Context) -> dict[str, Any]:
    """A profile of each contestant, one after the other."""
    source = source_of(cell, context)
    found: dict[str, Any] = {}
    for number, name in enumerate(cell.contestants):
        left = len(cell.contestants) - number
        make, why_not = maker(name, cell, context, source)
        found[name] = {"absent": why_not} if why_not else record(make, context, name, left)
    return {"runs": found, "shape": about(cell, context, source)}


def memory(cell: Cell, context: Context) -> dict[str, Any]:
    source = source_of(cell, context)
    found: dict[str, Any] = {}
    for name in cell.contestants:
        contestant = maker(name, cell, context, source)[0]()
        found[name] = memory_growth(contestant, context.where, context.deadline)
        contestant.close()
    return {"runs": found, "shape": about(cell, context, source)}
