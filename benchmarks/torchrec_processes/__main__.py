"""A run of several processes beside TorchRec's on the same batches: samples a second, and bytes that a rank sends.

    python -m benchmarks.torchrec_processes                        2 ranks on a loopback device and on a network of 1 Gbit/s
    python -m benchmarks.torchrec_processes --networks loopback --ranks 8 --rounds 1 --steps 4
    python -m benchmarks.torchrec_processes --shape kaggle-zipf --only ours table_wise      33.8 M rows, synthetic samples
    python -m benchmarks.torchrec_processes --rehearse             tiny shapes: whether it runs, no figure of anything

Needs root, for network namespaces of its own. Every rank has one thread and trains a preset (criteo_kaggle, for MLPerf's bags
criteo_terabyte) by gloo, float32, row-wise Adagrad. All contestants take turns in the same processes, on batches that lie in
memory. Bytes are those that the interface of the namespace has sent, with all headers: of each rank, for each sample that it
trains. TorchRec is its DLRM under DistributedModelParallel with a plan of one way for all tables (row_wise, table_wise,
data_parallel) or `mixed` (tables with fewer rows than a rank has samples are data_parallel, the others table_wise), in a plain
loop or by TrainPipelineSparseDist ("pipelined"), with its own dense part or ours. Runs with our dense part begin with our
weights, so their losses must be ours. Prints one JSON line a contestant.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.command import data_folder, facts_of_call, parser
from benchmarks.common.machine import commit, versions
from benchmarks.common.statistics import quartiles, ratio_of_medians
from benchmarks.torchrec_processes.network import LOOPBACK, network, start_ranks
from benchmarks.torchrec_processes.trial import DENSE, LOSS_BOUND, OUR_DENSE, OURS, RIVALS, Trial

PLAIN_ZIPF = "data.synthetic.popular_ratio=0"


@dataclass(frozen=True)
class Shape:
    """A shape of `benchmarks.common.shapes` and what is set besides."""

    name: str
    settings: tuple[str, ...] = ()
    real: bool = False
    """Whether samples are those of the Criteo file."""


SHAPES = {
    "kaggle": Shape("kaggle", ("data.ids=contiguous",), real=True),
    "kaggle-zipf": Shape("kaggle", (PLAIN_ZIPF,)),
    "mlperf": Shape("mlperf", (PLAIN_ZIPF,)),
    "mlperf-500k": Shape("mlperf", (PLAIN_ZIPF, "data.max_table_rows=500000")),
    "tiny": Shape("tiny", ("optimizer.embedding=rowwise_adagrad",)),
}


def arguments() -> argparse.Namespace:
    parse = parser(__doc__, "benchmarks.torchrec_processes")
    parse.add_argument("--data", default=str(data_folder() / "criteo_kaggle_sample_137k.tsv.zst"), help="a Criteo file")
    parse.add_argument("--shape", choices=SHAPES, default="kaggle")
    parse.add_argument("--ranks", type=int, default=2)
    parse.add_argument("--networks", nargs="+", default=[LOOPBACK, "1gbit"], help="loopback, or a rate for two nodes")
    parse.add_argument("--samples", type=int, default=2048, help="samples of a batch, of each rank")
    parse.add_argument("--rounds", type=int, default=9)
    parse.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parse.add_argument("--only", nargs="+", choices=[OURS, *RIVALS], default=[OURS, *RIVALS], metavar="NAME")
    parse.add_argument("--set", action="append", default=[])
    parse.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args = parse.parse_args()
    if args.ranks % 2 and args.networks != [LOOPBACK]:
        parse.error(f"argument --ranks: must be even where two nodes share them, got {args.ranks}")
    if args.only != [OURS] and not importlib.util.find_spec("torchrec"):
        parse.error(
            "argument --only: must be ours alone where torchrec is not installed; make .venv/installed-bench installs it"
        )
    if args.rehearse:
        args.shape, args.rounds, args.steps, args.samples = "tiny", 1, 2, 64
    return args


def trial_of(args: argparse.Namespace, interface: str) -> Trial:
    shape = SHAPES[args.shape]
    return Trial(
        shape.name, args.data if shape.real else "", (DENSE, *args.only), args.samples, (*shape.settings, *args.set),
        args.rounds, args.steps, interface,
    )  # fmt: skip


def measure(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Have all ranks train on a network. Returns what rank 0 has measured."""
    with tempfile.TemporaryDirectory() as folder, network(kind) as nodes:
        out = Path(folder) / "found.json"
        trial = trial_of(args, nodes[0].interface)
        start_ranks(nodes, args.ranks, ["benchmarks.torchrec_processes.rank", trial.text(), str(out)])
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def lines(args: argparse.Namespace, kind: str, result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each contestant. `embedding_bytes` are those beside the sum of the dense gradients."""
    found = result["found"]
    dense_bytes = statistics.median(found[DENSE]["gained"]["sent_bytes"])
    ours = found.get(OURS)
    for name, one in found.items():
        sent = statistics.median(one["gained"]["sent_bytes"])
        low, high = quartiles(one["seconds"])
        samples = args.ranks * args.samples
        line = {"network": kind, "shape": args.shape, "ranks": args.ranks, "contestant": name}
        line |= {"ms": round(1e3 * one["median"], 2), "quartiles_ms": [round(1e3 * low, 2), round(1e3 * high, 2)]}
        line["processor_ms"] = round(1e3 * statistics.median(one["gained"]["processor_seconds"]), 1)
        line |= {"samples_per_second": round(samples / one["median"]), "sent_bytes": round(sent)}
        line["sent_bytes_of_turns"] = [round(count) for count in one["gained"]["sent_bytes"]]
        if name != DENSE:
            line |= {"embedding_bytes": round(sent - dense_bytes), "loss": one["gained"]["loss"][-1]}
            line |= {"counted_bytes": {what: round(count) for what, count in one["facts"]["counted_bytes"].items()}}
        if ours is not None and name not in (OURS, DENSE):
            ratio = ratio_of_medians(one["seconds"], ours["seconds"])
            line["ours_is_faster_by"] = {what: round(value, 3) for what, value in ratio.items()}
        yield line


def disagreements(result: dict[str, Any]) -> list[str]:
    """Return who begins with our weights and has other losses in the first turn."""
    losses = {name: loss for name, loss in result["first_loss"].items() if name == OURS or OUR_DENSE in name}
    mine = losses.pop(OURS, None)
    if mine is None:
        return []
    apart = {name: abs(loss - mine) / mine for name, loss in losses.items()}
    return [f"{name}: {share:.2g}" for name, share in apart.items() if not share <= LOSS_BOUND]


def main() -> int:
    args, began = arguments(), time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no network is left behind
    wrong = []
    for kind in args.networks:
        result = measure(args, kind)
        wrong += disagreements(result)
        for line in lines(args, kind, result):
            print(json.dumps(line), flush=True)
        facts = {"network": kind, "raw_gigabits_per_second": round(result["raw_gigabits"], 3)}
        print(json.dumps({**facts, "rows": result["rows"], "load": round(os.getloadavg()[0], 1)}), flush=True)
    call = facts_of_call("benchmarks.torchrec_processes", began)
    print(json.dumps({**call, "commit": commit(), "versions": versions(), "losses_that_differ": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
