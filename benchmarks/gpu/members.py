"""The process of one contestant of a cell: a rival that answers, or a run of ours whose kernels are compiled."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from benchmarks.common.results import say
from benchmarks.gpu.plan import GpuCell


def context_of(args: argparse.Namespace, **more: Any) -> Any:
    """Return what a contestant of this process needs besides its cell."""
    from benchmarks.gpu.cells import Context, where_of

    return Context(where_of(args), args.ends, args.data, "", say, lambda _: None, **more)


def serve_rival(cell: GpuCell, args: argparse.Namespace) -> int:
    """Serve one contestant of a cell to the process that measures the cell (see `apart.py`)."""
    from benchmarks.gpu.apart import end_with_parent, given_batches, serve
    from benchmarks.gpu.cells import make_rival
    from benchmarks.gpu.shared_batches import Awaited

    end_with_parent()
    batches = None if args.batches is None else Awaited(lambda: given_batches(args.batches))
    contestant: Any
    try:
        contestant = make_rival(args.serve_rival, cell, context_of(args, batches=batches))
    except Exception as error:
        contestant = error
    serve(contestant, args.reply_to)
    os._exit(0)


def compile_for(cell: GpuCell, args: argparse.Namespace) -> int:
    """Compile the kernels of one contestant of a cell (see `compiling.py`)."""
    from benchmarks.gpu.compiling import compile_one

    status = compile_one(cell, args.compile, context_of(args))
    sys.stdout.flush()
    os._exit(status)
