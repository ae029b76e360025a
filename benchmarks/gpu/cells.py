"""How a cell of each kind is run: its batches, its contestants by their names, its settings.

A cell runs in a process of its own: a fault of the device in one does not end the others, and its memory is free afterwards.
Its contestants share that process, rivals excepted, and take turns.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from benchmarks.common.contestants import Contestant, Ours, Where, budget_bytes
from benchmarks.common.results import explain
from benchmarks.common.shapes import SHAPES, Preloaded, configure, open_shape, preload
from benchmarks.gpu.apart import Apart
from benchmarks.gpu.ceilings import measure_ceilings
from benchmarks.gpu.fbgemm import FbgemmCaching, FbgemmDevice, TorchRecDevice
from benchmarks.gpu.gpu_tests import run_tests
from benchmarks.gpu.growth import memory_growth
from benchmarks.gpu.limit import OutOfTime, limited
from benchmarks.gpu.measure import compare
from benchmarks.gpu.plan import RIVALS, GpuCell
from benchmarks.gpu.rivals import PlainDevice, PlainHybrid, Rival
from benchmarks.gpu.shared_batches import Awaited, Shelf
from benchmarks.gpu.steps import first_steps
from benchmarks.gpu.timeline import record

Note = Callable[[str], None]

BIG_BATCH_REPORT_STEPS = 10
PRELOADED_STEPS = 1500
PRELOADED_BYTES = 3 << 30
"""Made once for all contestants of a cell; each rival has them in its own form besides."""
FBGEMM_WARNS = "_fbgemm_torch_compat_table"
"""In a warning that FBGEMM gives hundreds of times."""


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
    save: Callable[[dict[str, Any]], None]
    """Given what is known so far, again and again: a cell that is killed leaves that much."""
    apart: list[str] | None = None
    """Arguments for the processes of rivals; none: they run in this one."""
    batches: Awaited | None = None
    """In a rival's process: those that the cell's process makes for all."""


def where_of(args: argparse.Namespace) -> Where:
    return Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)


def run_cell(cell: GpuCell, args: argparse.Namespace, note: Note) -> dict[str, Any]:
    """Run a cell, in its time. A rehearsal has none but for turns, and runs rivals in this process."""
    logging.getLogger().addFilter(lambda record: FBGEMM_WARNS not in str(record.msg))
    deadline = time.perf_counter() + cell.seconds if args.rehearse else args.ends
    words = None if args.rehearse else [*args.words, "--cell", cell.name]
    context = Context(where_of(args), deadline, args.data, str(args.out), note, args.save, words)
    try:
        with limited(float("inf") if args.rehearse else deadline + 1.0):
            return measured(cell, args, context)
    except OutOfTime:
        raise TimeoutError("the cell was not done in its time") from None


def measured(cell: GpuCell, args: argparse.Namespace, context: Context) -> dict[str, Any]:
    if cell.kind == "warm":
        from benchmarks.gpu.compiling import compile_kernels

        return compile_kernels(cell, args.words, context)
    kinds = {
        "steps": lambda: steps(cell, context),
        "tests": lambda: run_tests(context.where, context.deadline, context.note),
        "ceilings": lambda: measure_ceilings(context.where),
        "comparison": lambda: comparison(cell, context),
        "timeline": lambda: timeline(cell, context),
        "memory": lambda: memory(cell, context),
    }
    return kinds[cell.kind]()


def settings_of(cell: GpuCell, where: Where, **more: Any) -> tuple[str, ...]:
    chosen = {"optimizer.embedding": cell.rule, **more}
    if where.rehearsal:
        chosen |= {"knobs.report_every": 2, "knobs.reclassify_every": 6, "run.split": "always"} | more
    elif cell.batch_size >= 8192:
        chosen |= {"knobs.report_every": BIG_BATCH_REPORT_STEPS}
    return (*where.settings, *(f"{key}={value}" for key, value in chosen.items()))


def config_of(cell: GpuCell, context: Context, **more: Any) -> Config:
    shape = SHAPES[cell.shape]
    return configure(shape, cell.batch_size, settings_of(cell, context.where, **more), context.data)


def source_of(cell: GpuCell, context: Context) -> Source:
    config = config_of(cell, context)
    source = open_shape(SHAPES[cell.shape], config)
    if not cell.preloaded:
        return source
    if context.batches is not None:
        return Preloaded(source, context.batches)
    return preload(source, config, 20 if context.where.rehearsal else PRELOADED_STEPS, PRELOADED_BYTES)


def steps(cell: GpuCell, context: Context) -> dict[str, Any]:
    def configured(**more: Any) -> Config:
        return config_of(cell, context, **more)

    graphs = (False,) if cell.blocking else (False, True)
    return first_steps(configured, source_of(cell, context), context.where, graphs, context.note)


RIVAL_CLASSES: dict[str, type[Rival]] = dict(
    zip(RIVALS, (PlainHybrid, PlainDevice, FbgemmCaching, FbgemmDevice, TorchRecDevice), strict=True)
)


def comparison(cell: GpuCell, context: Context) -> dict[str, Any]:
    """Rivals begin first: they set themselves up in processes of their own while batches and our own runs are made."""
    left_out: dict[str, str] = {}
    shelf = Shelf() if cell.preloaded and context.apart else None
    makers: dict[str, Callable[[], Contestant] | Apart] = {}
    apart: list[Apart] = []
    try:
        for name in cell.contestants:
            make, why_not = maker(name, cell, context, lambda: source)
            if why_not:
                left_out[name] = why_not
            elif context.apart and Name.of(name, cell).policy in RIVALS:
                apart.append(Apart(name, context.apart, shelf.descriptor if shelf else None))
                makers[name] = apart[-1]
            else:
                makers[name] = make
        source = source_of(cell, context)
        if shelf is not None and isinstance(source, Preloaded):  # the same batches, where rivals see them too
            batches, contents = shelf.fill(list(source.batches))
            source = Preloaded(source.origin, batches)
            for rival in apart:
                rival.give(contents)
        count = len(source) if isinstance(source, Preloaded) else 0
        of_all = {"preloaded_batches": count, "shape": about(cell, context, source)}

        def whole(result: dict[str, Any]) -> dict[str, Any]:
            return {**result, "left_out": left_out | result["left_out"], **of_all}

        return whole(
            compare(makers, context.where, context.deadline, context.note, lambda result: context.save(whole(result)))
        )
    except BaseException:
        for rival in apart:
            rival.close()
        raise


def about(cell: GpuCell, context: Context, source: Source) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Name:
    """A contestant's name, `POLICY[:ACTION][/SPLIT][+RULE][@KEY=VALUE,...]` or a rival's, taken apart."""

    policy: str
    action: str
    rule: str
    settings: dict[str, Any]

    @staticmethod
    def of(name: str, cell: GpuCell) -> Name:
        word, _, settings = name.partition("@")
        word, _, rule = word.partition("+")
        word, _, split = word.partition("/")
        policy, _, action = word.partition(":")
        more: dict[str, Any] = {"optimizer.embedding": rule or cell.rule}
        more |= dict(setting.split("=", 1) for setting in settings.split(",") if setting)
        return Name(policy, action, rule or cell.rule, {**more, "run.split": split} if split else more)


def maker(
    name: str, cell: GpuCell, context: Context, source: Callable[[], Source], **settings: Any
) -> tuple[Callable[..., Contestant], str]:
    """How a contestant is made in this process, with these settings besides its own, or why it cannot take part."""
    of = Name.of(name, cell)
    more = of.settings | settings
    if of.policy in RIVALS:
        rival, config = RIVAL_CLASSES[of.policy], config_of(cell, context, **more)
        cached = {"cached_ratio": cell.rows_ratio} if rival is FbgemmCaching else {}
        return lambda: rival(name, config, source(), context.where, **cached), rival.why_not(context.where, config)
    more["knobs.policy"] = of.policy
    if of.action:
        more["knobs.action"] = of.action

    def ours(**named: Any) -> Contestant:
        budget = None
        if of.policy not in ("device_only", "hybrid"):
            as_reckoned = config_of(cell, context, **{**more, "optimizer.embedding": cell.budget_rule or of.rule})
            budget = budget_bytes(as_reckoned, source(), cell.rows_ratio)
        return Ours(name, config_of(cell, context, **more), source(), context.where, budget, **named)

    return ours, ""


def make_rival(name: str, cell: GpuCell, context: Context) -> Contestant:
    """A rival in the process that was started for it."""
    source = source_of(cell, context)
    make, why_not = maker(name, cell, context, lambda: source)
    if why_not:
        raise RuntimeError(why_not)
    return make()


def timeline(cell: GpuCell, context: Context) -> dict[str, Any]:
    def profiled(name: str, make: Callable[..., Contestant], until: float) -> dict[str, Any]:
        return record(make, context.where, Path(context.out), f"{cell.name} {name}", until)

    return one_by_one(cell, context, profiled)


def memory(cell: GpuCell, context: Context) -> dict[str, Any]:
    def grown(_: str, make: Callable[..., Contestant], until: float) -> dict[str, Any]:
        contestant = make()
        try:
            return memory_growth(contestant, context.where, until)
        finally:
            contestant.close()

    return one_by_one(cell, context, grown)


def one_by_one(
    cell: GpuCell, context: Context, work: Callable[[str, Callable[..., Contestant], float], dict[str, Any]]
) -> dict[str, Any]:
    """Each contestant alone, for its part of the time. One that fails costs its own figures only."""
    source = source_of(cell, context)
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    result = {"runs": found, "failed": failed, "left_out": left_out, "shape": about(cell, context, source)}
    for number, name in enumerate(cell.contestants):
        now = time.perf_counter()
        until = now + (context.deadline - now) / (len(cell.contestants) - number)
        make, why_not = maker(name, cell, context, lambda: source)
        if why_not:
            left_out[name] = why_not
            continue
        try:
            with limited(float("inf") if context.where.rehearsal else context.deadline):
                found[name] = work(name, make, until)
        except OutOfTime:
            left_out[name] = "was not done in time"
            context.note(f"{name}: {left_out[name]}")
        except Exception as error:
            failed[name] = explain(error)
            context.note(f"{name}: failed: {failed[name].splitlines()[0]}")
        context.save(result)
    return result
