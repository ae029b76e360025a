"""A run of several processes beside TorchRec's on the same batches: samples a second, and bytes that a rank sends.

    python -m benchmarks.torchrec_processes                        2 ranks on a loopback device and on a network of 1 Gbit/s
    python -m benchmarks.torchrec_processes --only loopback --ranks 8 --rounds 1 --steps 4
    python -m benchmarks.torchrec_processes --shape kaggle-zipf --contestants ours table_wise      33.8 M rows, synthetic samples
    python -m benchmarks.torchrec_processes --rehearse             tiny shapes: whether it runs, no figure of anything

Needs root, for network namespaces of its own. Every rank has one thread and trains a preset (criteo_kaggle, for MLPerf's bags
criteo_terabyte) by gloo, float32, row-wise Adagrad. All contestants take turns in the same processes, on batches that lie in
memory. Bytes are those that the interface of the namespace has sent, with all headers: of each rank, for each sample that it
trains. TorchRec is its DLRM under DistributedModelParallel with a plan of one way for all tables (row_wise, table_wise,
data_parallel) or `mixed` (tables with fewer rows than a rank has samples are data_parallel, the others table_wise), in a plain
loop or by TrainPipelineSparseDist ("pipelined"), with its own dense part or ours. Runs with our dense part begin with our
weights, so their losses must be ours. "ours, all rows dealt out" gives no table whole to one rank (run.whole_tables=false). The
cell sgd compares all rows after the first turn with those of one process; every rank needs memory for all of them twice over.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common.bench import Bench
from benchmarks.common.command import data_folder
from benchmarks.torchrec_processes import trial


def options(line: argparse.ArgumentParser) -> None:
    line.add_argument("--data", default=str(data_folder() / "criteo_kaggle_sample_137k.tsv.zst"), help="a Criteo file")
    line.add_argument("--shape", choices=trial.SHAPES, default="kaggle")
    line.add_argument("--ranks", type=int, default=2)
    line.add_argument("--samples", type=int, default=2048, help="samples of a batch, of each rank")
    line.add_argument("--steps", type=int, default=10, help="steps of a turn")
    line.add_argument("--set", action="append", default=[])


BENCH = Bench(
    "torchrec_processes", __doc__, trial.CELLS, trial.rehearsed, rounds=9, all_rounds=9, apart=False, options=options
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
