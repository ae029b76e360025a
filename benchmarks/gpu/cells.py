"""How a cell of each kind is run.

A cell runs in a process of its own: a fault of the device in one does not end the others, and its memory is free afterwards.
Its contestants share that process, rivals excepted, and take turns.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from benchmarks.common.contestants import Contestant
from benchmarks.common.results import explain
from benchmarks.common.shapes import SHAPES, Preloaded
from benchmarks.gpu.apart import Apart
from benchmarks.gpu.ceilings import measure_ceilings
from benchmarks.gpu.compiling import compile_kernels
from benchmarks.gpu.contestants import Context, Name, Note, config_of, maker, source_of, where_of
from benchmarks.gpu.gpu_tests import run_tests
from benchmarks.gpu.growth import memory_growth
from benchmarks.gpu.limit import OutOfTime, limited
from benchmarks.gpu.measure import compare
from benchmarks.gpu.plan import RIVALS, GpuCell
from benchmarks.gpu.shared_batches import Shelf
from benchmarks.gpu.steps import first_steps
from benchmarks.gpu.timeline import record

FBGEMM_WARNS = "_fbgemm_torch_compat_table"
"""In a warning that FBGEMM gives hundreds of times."""


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


def steps(cell: GpuCell, context: Context) -> dict[str, Any]:
    def configured(**more: Any) -> Config:
        return config_of(cell, context, **more)

    graphs = (False,) if cell.blocking else (False, True)
    return first_steps(configured, source_of(cell, context), context.where, graphs, context.note)


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
