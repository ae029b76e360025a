"""One cell in its own process, or one of its contestants."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.results import say, write
from benchmarks.gpu import plan, stand_ins

CLOSE_SECONDS = 2.0
"""What a cell keeps of its time for writing down what it found."""

FBGEMM_WARNS = "_fbgemm_torch_compat_table"
"""In a warning that FBGEMM gives hundreds of times."""


def quiet_fbgemm() -> None:
    logging.getLogger().addFilter(lambda record: FBGEMM_WARNS not in str(record.msg))


def run_one(args: argparse.Namespace) -> int:
    cell = next(cell for cell in plan.chosen(args) if cell.name == args.cell)
    found = measure(cell, args, args.result, args.deadline)
    write(args.result, found)
    sys.stdout.flush()
    os._exit(0 if "result" in found else 1)  # without waiting for whatever thread is still at work


def serve_rival(args: argparse.Namespace) -> int:
    """One contestant of a cell, for the process that measures the cell (see `apart.py`)."""
    stand_ins.install()
    quiet_fbgemm()
    import torch

    from benchmarks.common.contestants import Where
    from benchmarks.gpu.apart import end_with_parent, given_batches, serve
    from benchmarks.gpu.cells import Context, make_rival
    from benchmarks.gpu.shared_batches import Awaited

    end_with_parent()

    cell = next(cell for cell in plan.chosen(args) if cell.name == args.cell)
    where = Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)
    batches = None if args.batches is None else Awaited(lambda: given_batches(args.batches))
    contestant: Any
    try:
        context = Context(where, 0.0, args.data, "", say, lambda _: None, batches=batches)
        contestant = make_rival(args.serve_rival, cell, context)
    except Exception as error:
        contestant = error
    serve(contestant, args.reply_to)
    os._exit(0)


def compile_for(args: argparse.Namespace) -> int:
    """Compile the kernels of one contestant of a cell (see `compiling.py`)."""
    stand_ins.install()
    import torch

    from benchmarks.common.contestants import Where
    from benchmarks.gpu.cells import Context
    from benchmarks.gpu.compiling import compile_one

    cell = next(cell for cell in plan.chosen(args) if cell.name == args.cell)
    where = Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)
    status = compile_one(cell, args.compile, Context(where, args.deadline, args.data, "", say, lambda _: None))
    sys.stdout.flush()
    os._exit(status)


def measure(cell: plan.Cell, args: argparse.Namespace, path: Path, deadline: float) -> dict[str, Any]:
    """A cell's result, or the error that ended it, with the machine it was measured on.

    Until it has ended `path` holds what is known so far, marked as partial.
    """
    if args.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    stand_ins.install()
    quiet_fbgemm()
    import torch

    from benchmarks.common.contestants import Where
    from benchmarks.common.results import explain
    from benchmarks.gpu.cells import Context, run_cell
    from benchmarks.gpu.compiling import compile_kernels
    from benchmarks.gpu.limit import OutOfTime, limited

    where = Where(torch.device("cpu" if args.rehearse else "cuda:0"), args.rehearse)
    apart = [] if args.rehearse else plan.words_of(cell, args)
    found = {"cell": asdict(cell), "data": args.data, "about": machine.describe(args.rehearse, "gpu")}

    def note(line: str) -> None:
        say(f"  {cell.name}: {line}")

    known: dict[str, Any] = {}

    def save(result: dict[str, Any]) -> None:
        known.update(result=result, partial=True)
        write(path, found | known)

    context = Context(where, deadline, args.data, str(args.out or path.parent), note, save, apart)
    try:
        with limited(float("inf") if args.rehearse else deadline + 0.5 * CLOSE_SECONDS):
            found["result"] = compile_kernels(cell, args, context) if cell.kind == "warm" else run_cell(cell, context)
    except (Exception, OutOfTime) as error:
        told = "OutOfTime: the cell was not done in its time\n" if isinstance(error, OutOfTime) else explain(error)
        say(f"  {cell.name}: {told}")
        found |= known | {"cut_short": told.splitlines()[0]} if known else {"error": told}
    return found
