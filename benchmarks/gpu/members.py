"""The process of one contestant of a cell."""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks.common.results import say
from benchmarks.gpu.apart import end_with_parent, given_batches, serve
from benchmarks.gpu.compiling import train_briefly
from benchmarks.gpu.contestants import Context, make_rival, where_of
from benchmarks.gpu.plan import GpuCell
from benchmarks.gpu.shared_batches import Awaited


def serve_rival(cell: GpuCell, args: argparse.Namespace) -> int:
    """Serve one contestant of a cell to the process that measures the cell (see `apart.py`); with --compile it only compiles its
    kernels (see `compiling.py`)."""
    end_with_parent()
    batches = None if args.batches is None else Awaited(lambda: given_batches(args.batches))
    context = Context(where_of(args), args.ends, args.data, "", say, lambda _: None, batches=batches)
    contestant: Any
    try:
        contestant = (train_briefly if args.compile else make_rival)(args.serve_rival, cell, context)
    except Exception as error:
        contestant = error
    serve(contestant, args.reply_to)
    os._exit(0)
