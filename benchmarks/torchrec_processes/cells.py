"""How a cell is run: on a network of its own, all ranks start and all contestants take turns in them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.cell import Absent, Cell
from benchmarks.torchrec_processes.network import LOOPBACK, network, start_ranks
from benchmarks.torchrec_processes.trial import (
    DEALT,
    DENSE,
    LOSS_BOUND,
    OUR_DENSE,
    OURS,
    ROW_BOUND,
    ROWS,
    SHAPES,
    Trial,
)

ABSENT = "torchrec is not installed (make .venv/installed-bench installs it)"


def run_cell(cell: Cell, args: argparse.Namespace, note: Callable[[str], None]) -> dict[str, Any]:
    """Have all ranks train on a network. Figures are those that rank 0 has measured."""
    rivals = [name for name in cell.contestants if name not in (DENSE, OURS, DEALT)]
    absent = {} if importlib.util.find_spec("torchrec") else dict.fromkeys(rivals, ABSENT)
    names = (DENSE, *(name for name in cell.contestants if name != DENSE and name not in absent))
    samples, steps, rounds = (64, 2, 1) if args.rehearse else (args.samples, args.steps, args.rounds)
    shape, settings = SHAPES["tiny" if args.rehearse else args.shape]
    data = args.data if args.shape == "kaggle" and not args.rehearse else ""
    if data and not Path(data).is_file():
        raise Absent(f"{data} is no file (--data names one of Criteo's)")
    with tempfile.TemporaryDirectory() as folder, network(LOOPBACK if cell.kind == ROWS else cell.name) as nodes:
        out = Path(folder) / "found.json"
        settings = (*settings, *cell.settings, *args.set)
        trial = Trial(shape, data, names, samples, settings, rounds, steps, nodes[0].interface, cell.kind == ROWS)
        start_ranks(nodes, args.ranks, ["benchmarks.torchrec_processes.rank", json.dumps(asdict(trial)), str(out)])
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    note(f"raw {found['raw_gigabits']:.3f} Gbit/s, {found['rows']:,} rows")
    for name, run in found["runs"].items():
        run["facts"] = facts(name, run, found["runs"][DENSE], args.ranks * samples)
    known: dict[str, Any] = {"raw_gigabits_per_second": found["raw_gigabits"], "rows": found["rows"], "ranks": args.ranks}
    known |= {"absent": absent, "checks": checks(found["first_loss"], found["apart"]), "rounds": rounds, "steps": steps}
    return {"runs": found["runs"], **known}


def facts(name: str, run: dict[str, Any], dense: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return bytes of a rank and sample, all of them and those beside the sum of the dense gradients, and what it costs."""
    gained = {what: statistics.median(values) for what, values in run["gained"].items()}
    told = {"samples a second": round(samples / run["median"]), "sent bytes": round(gained["sent_bytes"])}
    told |= {"processor ms": round(1e3 * gained["processor_seconds"], 1)}
    if name != DENSE:
        beside = gained["sent_bytes"] - statistics.median(dense["gained"]["sent_bytes"])
        told |= {"embedding bytes": round(beside), "loss": run["gained"]["loss"][-1]}
        told |= {f"counted {what} bytes": round(count) for what, count in run["facts"]["counted_bytes"].items()}
    return told


def checks(first_loss: dict[str, float], apart: dict[str, float]) -> list[dict[str, Any]]:
    """Compare the losses of the first turn of those who begin with our weights. `apart`: of rows, from those of one process."""
    mine = first_loss.get(OURS)
    losses = {name: abs(loss - mine) / mine for name, loss in first_loss.items() if mine and OUR_DENSE in name}
    return [
        {"check": f"{name}: {what}", "difference": share, "bound": bound, "passed": share <= bound}
        for what, bound, shares in (("loss", LOSS_BOUND, losses), ("rows", ROW_BOUND, apart))
        for name, share in shares.items()
    ]
