"""What is measured: networks, shapes, contestants. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.common.cell import Cell

OURS, DENSE = "ours", "dense gradients alone"
DEALT = "ours, all rows dealt out"
PLANS = ("row_wise", "table_wise", "data_parallel", "mixed")
PIPELINED, OUR_DENSE = ", pipelined", ", our dense part"
"""What a rival's name ends with: trained by TrainPipelineSparseDist, with our dense part instead of TorchRec's DLRM."""

RIVALS = tuple(f"{plan}{loop}{dense}" for plan in PLANS for loop in ("", PIPELINED) for dense in ("", OUR_DENSE))

PLAIN_ZIPF = "data.synthetic.popular_ratio=0"
SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "kaggle": ("kaggle", ("data.ids=contiguous",)),
    "kaggle-zipf": ("kaggle", (PLAIN_ZIPF,)),
    "mlperf": ("mlperf", (PLAIN_ZIPF,)),
    "mlperf-500k": ("mlperf", (PLAIN_ZIPF, "data.max_table_rows=500000")),
    "tiny": ("tiny", ("optimizer.embedding=rowwise_adagrad",)),
}
"""Shapes of `benchmarks.common.shapes` by their names here, and what is set besides. `kaggle` reads the Criteo file."""

ROWS = "rows"
"""The kind of a cell whose contestants' rows are compared with those of one process."""

CELLS = (
    Cell("loopback", "ranks of one node, which share a loopback device", (DENSE, OURS, DEALT, *RIVALS)),
    Cell("1gbit", "two nodes, joined by a cable of 1 Gbit/s", (DENSE, OURS, DEALT, *RIVALS)),
    Cell(
        "sgd", "rows after the first turn of SGD beside those of one process",
        (DENSE, OURS, DEALT, *(f"{plan}{OUR_DENSE}" for plan in PLANS)), kind=ROWS,
        settings=("optimizer.embedding=sgd", "run.linear=torch"),
    ),
)  # fmt: skip


def rehearsed(cell: Cell) -> Cell:
    return replace(cell, shape="tiny")


LOSS_BOUND = 1e-3
"""Largest relative difference of mean losses in the first turn, between runs that begin with the same weights."""

ROW_BOUND = 1e-4
"""Largest difference from a row of one process, of the largest movement of a row, likewise. Under SGD a gradient of another scale
moves rows otherwise; row-wise Adagrad hides it."""


@dataclass(frozen=True)
class Trial:
    """Contestants, their batches, and how often they take turns."""

    shape: str
    data: str
    """A Criteo file; empty for synthetic samples."""
    contestants: tuple[str, ...]
    samples: int
    """Samples of a batch, of each rank."""
    settings: tuple[str, ...]
    rounds: int
    steps: int
    interface: str
    """The network interface whose bytes are counted, on every rank."""
    compares_rows: bool = False
