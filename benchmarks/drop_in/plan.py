"""The cells and the bars of `make bench-drop-in`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.common.cell import Cell
from benchmarks.common.report import Found, ratio_bar, runs_of
from benchmarks.cpu.plan import CUT, CUT_SHORT, MLPERF

TRAIN, WRAPPED, IN_LINE, COLLECTION = "adaptive-rec train", "wrapped, prefetch", "wrapped", "collection, prefetch"
PLAIN, TORCHREC = "nn.EmbeddingBag", "TorchRec"
KAGGLE = "Criteo Kaggle's 26 tables of dim 16, synthetic one-hot batches of 2048, policy hotline with room for 5 % of the rows"
ALL_ROWS, FEWER = CUT, ("data.max_table_rows=4000000",)


def _cell(rule: str, *rivals: str, rows: tuple[str, ...] = ALL_ROWS, briefly: bool = True) -> Cell:
    size = (
        "tables cut to 8 M rows (31.3 M rows)"
        if rows == ALL_ROWS
        else "tables cut to 4 M rows: torch's Adagrad keeps as much again"
    )
    return Cell(
        f"{rule}{'' if briefly else '-waiting'}", f"{KAGGLE}, {size}", (TRAIN, WRAPPED, IN_LINE, COLLECTION, *rivals),
        steps=6, briefly=briefly, settings=(f"optimizer.embedding={rule}", "knobs.policy=hotline", *rows),
    )  # fmt: skip


MULTI_HOT = Cell(
    "multi-hot", f"{MLPERF}, row-wise Adagrad, policy hotline with room for 5 % of the rows",
    (TRAIN, WRAPPED, IN_LINE, COLLECTION, TORCHREC), shape="mlperf", batches=24,
    settings=("optimizer.embedding=rowwise_adagrad", "knobs.policy=hotline", *CUT_SHORT),
)  # fmt: skip

QUICK = (
    _cell("rowwise_adagrad", TORCHREC),
    _cell("sgd", PLAIN),
    _cell("adagrad", PLAIN, rows=FEWER),
    MULTI_HOT,
)
ALL = (*QUICK, _cell("rowwise_adagrad", TORCHREC, briefly=False), _cell("sgd", PLAIN, briefly=False))


def rehearsed(cell: Cell) -> Cell:
    kept = tuple(setting for setting in cell.settings if setting not in CUT + FEWER + CUT_SHORT)
    more = ("run.threads=1", "knobs.reclassify_every=6")
    shape = "tiny_bags" if cell.shape == "mlperf" else "tiny"
    return replace(cell, shape=shape, settings=(*kept, *more), steps=2, batches=6)


SHARE_OF_TRAIN = 0.95


def bars(found: Found) -> Iterator[dict[str, Any]]:
    """Yield the throughput of each drop-in as a share of train's, and as a multiple of each rival's."""
    for name in found:
        runs = runs_of(found, name)
        for mine in (WRAPPED, COLLECTION):
            for other in (TRAIN, PLAIN, TORCHREC):
                if mine in runs and other in runs:
                    bound = SHARE_OF_TRAIN if other == TRAIN else 1.0
                    what = f"steps a second of {mine} / {other}, {name}"
                    yield ratio_bar(what, runs[other], runs[mine], bound, at_least=True)
