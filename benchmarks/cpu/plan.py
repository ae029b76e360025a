"""The cells and the bars of `make bench` and of `make bench-all`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.common.cell import Cell
from benchmarks.common.report import Found, ratio_bar, runs_of
from benchmarks.common.results import bar
from benchmarks.common.statistics import ratio_of_medians

CUT = ("data.max_table_rows=8000000",)
CUT_SHORT = ("data.max_table_rows=500000",)
BF16 = ("run.precision=bf16",)

FUSED = ("FBGEMM", "TorchRec")
TORCH_LAYERS = ", torch's layers"
"""Ends the name of a rival whose dense part multiplies as torch does by itself (run.linear=torch), not as ours does."""
PLAIN = tuple(f"{name}{TORCH_LAYERS}" for name in FUSED)
WHOLE = ("hybrid", "hybrid compiled", "TorchRec's DLRM", "TorchRec's DLRM compiled", "floor")
SPLIT = ("floor split", "hotline split")

AUTOCAST = "dense part under bf16 autocast"
ALONE = "the embedding part alone"
KAGGLE = "Criteo Kaggle's 26 tables cut to 8 M rows (31.3 M rows of dim 16), synthetic one-hot batches of 2048"
MLPERF = "MLPerf's multi-hot Criteo 1TB: 214 lookups a sample, dim 128, tables cut to 500 k rows (4.0 M rows), batches of 2048"
REAL = "the 137 k rows of the Criteo Kaggle sample, ids hashed into the full table sizes (33.8 M rows of dim 16), batches of 2048"
SAMPLE = "criteo_kaggle_sample_137k.tsv.zst"


def _rows(millions: int) -> Cell:
    rows = ",".join([str(millions * 1_000_000 // 26)] * 26)
    about = f"{millions} M rows in 26 equal tables of dim 16"
    return Cell(f"rows-{millions}m", about, ("hybrid", "floor"), settings=(f"data.table_rows=[{rows}]",))


def _waiting(cell: Cell) -> Cell:
    """The same with OpenMP's threads waiting as they do by default: busily. Bars take what is quicker for each rival."""
    few = tuple(name for name in cell.contestants if name not in SPLIT and name not in ("hotline", "torch SGD"))
    about = f"{cell.about}; OpenMP's threads wait as by default"
    return replace(cell, name=f"{cell.name}-waiting", contestants=few, briefly=False, about=about)


KAGGLE_FP32 = Cell(
    "kaggle-fp32", KAGGLE, ("hybrid", "hotline", "hotline split", "torch SGD", *FUSED, *PLAIN, "floor", "floor split"),
    settings=CUT,
)  # fmt: skip
KAGGLE_BF16 = Cell(
    "kaggle-bf16", f"{KAGGLE}; {AUTOCAST}", ("hybrid", "hotline", *FUSED, "FBGEMM fp16 rows", "floor"), settings=(*CUT, *BF16)
)
AS_IT_COMES = "TorchRec as it comes: its tables and its DLRM"
DLRM_FP32 = replace(KAGGLE_FP32, name="dlrm-fp32", contestants=WHOLE, about=f"{KAGGLE}; {AS_IT_COMES}")
DLRM_BF16 = replace(KAGGLE_BF16, name="dlrm-bf16", contestants=WHOLE, about=f"{KAGGLE}; {AUTOCAST}; {AS_IT_COMES}")
MLPERF_FP32 = Cell(
    "mlperf-fp32", MLPERF, ("hybrid", *FUSED, *PLAIN, "floor"), shape="mlperf", settings=CUT_SHORT, steps=1, batches=24
)
MLPERF_BF16 = replace(
    MLPERF_FP32, name="mlperf-bf16", contestants=("hybrid", *FUSED, "floor"), about=f"{MLPERF}; {AUTOCAST}",
    settings=(*CUT_SHORT, *BF16),
)  # fmt: skip
EMBEDDING_KAGGLE = Cell("embedding-kaggle", f"{KAGGLE}; {ALONE}", ("ours", "FBGEMM"), "embedding", settings=CUT, steps=10)
EMBEDDING_MLPERF = replace(
    EMBEDDING_KAGGLE, name="embedding-mlperf", about=f"{MLPERF}; {ALONE}", shape="mlperf", settings=CUT_SHORT, steps=2, batches=24
)
EMBEDDING = (EMBEDDING_KAGGLE, EMBEDDING_MLPERF)
CRITEO = Cell("criteo", REAL, ("hybrid", *FUSED, *PLAIN, "floor"), data=SAMPLE)
PREFETCHING = Cell(
    "prefetching", "Criteo Kaggle's tables; 4 batches made ready ahead, or none", ("hybrid", "without prefetching")
)

QUICK = (
    KAGGLE_FP32, KAGGLE_BF16, _waiting(KAGGLE_FP32), DLRM_FP32, DLRM_BF16, *EMBEDDING, MLPERF_FP32, MLPERF_BF16, CRITEO,
    *(_rows(millions) for millions in (1, 10, 50, 200)), PREFETCHING,
)  # fmt: skip

ALL = (
    *QUICK,
    *(_waiting(cell) for cell in (KAGGLE_BF16, *EMBEDDING, MLPERF_FP32, MLPERF_BF16, CRITEO)),
    *(replace(cell, name=f"{cell.name}-torchrec", contestants=("ours", *FUSED)) for cell in EMBEDDING),
    replace(KAGGLE_FP32, name="kaggle-torch", contestants=("hybrid", "torch SGD", "torch Adagrad", "floor")),
    replace(KAGGLE_BF16, name="kaggle-bf16-forms",
            contestants=("hybrid", "hotline split", "FBGEMM fp16 output", "FBGEMM fp16 rows", "floor", "floor split")),
    replace(MLPERF_FP32, name="mlperf-torch", contestants=("hybrid", "torch SGD", "torch Adagrad", "floor")),
)  # fmt: skip

PANELS = (
    ("kaggle-fp32", "Criteo Kaggle, one-hot, float32"), ("kaggle-bf16", "Criteo Kaggle, one-hot, bf16"),
    ("mlperf-fp32", "MLPerf, multi-hot, float32"), ("mlperf-bf16", "MLPerf, multi-hot, bf16"),
    ("criteo", "Criteo Kaggle, real rows, float32"),
)  # fmt: skip


def rehearsed(cell: Cell) -> Cell:
    """The same on tiny shapes: whether everything runs, and no figure of anything."""
    shape = "tiny" if cell.shape == "kaggle" else "tiny_bags"
    precision = tuple(setting for setting in cell.settings if setting in BF16)
    small: tuple[str, ...] = ("run.threads=1", "knobs.reclassify_every=6")
    if cell.data:
        shape, small = cell.shape, (*small, "data.max_table_rows=1000")
    return replace(cell, shape=shape, settings=(*precision, *small), steps=2, batches=6)


# Bars ----------------------------------------------------------------------------------------------------------------

MOST = (
    ("kaggle-fp32", "hybrid", "floor", 1.08), ("kaggle-fp32", "hotline", "floor", 1.05),
    ("kaggle-fp32", "hotline", "hybrid", 1.03),
    ("kaggle-fp32", "hotline split", "floor split", 1.05), ("kaggle-bf16", "hybrid", "floor", 1.15),
)  # fmt: skip
"""Cell, who over whom, and the bound."""
LEAST = (
    *(("dlrm-fp32", f"TorchRec's DLRM{how}", f"hybrid{how}", 1.25) for how in ("", " compiled")),
    *(("dlrm-bf16", f"TorchRec's DLRM{how}", f"hybrid{how}", 1.25) for how in ("", " compiled")),
    ("prefetching", "without prefetching", "hybrid", 0.98),
)
RIVAL_LEAST = (
    ("kaggle-fp32", "hybrid", 1.05), ("kaggle-fp32-waiting", "hybrid", 1.05), ("kaggle-bf16", "hybrid", 1.1),
    ("mlperf-fp32", "hybrid", 1.08), ("mlperf-bf16", "hybrid", 1.1), ("criteo", "hybrid", 1.05),
    ("embedding-kaggle", "ours", 2.0), ("embedding-mlperf", "ours", 1.4),
)  # fmt: skip
ROWS_BOUND = 1.5


def bars(found: Found) -> Iterator[dict[str, Any]]:
    """Every bar that the results say something about."""
    for bounds, at_least in ((MOST, False), (LEAST, True)):
        for cell, over, under, bound in bounds:
            runs = runs_of(found, cell)
            if over in runs and under in runs:
                yield ratio_bar(f"{over} / {under}, {cell}", runs[over], runs[under], bound, at_least)
    yield from _rival_bars(found)
    yield from _rows_bar(found)


def _rival_bars(found: Found) -> Iterator[dict[str, Any]]:
    """Each rival as it is quickest beside ours in the same turns, its threads asleep or busy while they wait as ours are. And
    with torch's own linear layers, as its users have it."""
    for cell, mine, bound in RIVAL_LEAST:
        runs = runs_of(found, cell)
        for rival in FUSED:
            plain, forms = f"{rival}{TORCH_LAYERS}", [name for name in runs if name.startswith(rival)]
            quickest = min(forms, key=lambda name: runs[name]["median"], default="")
            for name in dict.fromkeys(name for name in (plain, quickest) if name in runs and mine in runs):
                yield ratio_bar(f"{name} / {mine}, {cell}", runs[name], runs[mine], bound, True)


def _rows_bar(found: Found) -> Iterator[dict[str, Any]]:
    """Measured in processes of their own, so each over its own floor: the machine may have been slower for one of them."""
    most, least = (runs_of(found, f"rows-{millions}m") for millions in (200, 1))
    if most and least:
        over, under = (ratio_of_medians(runs["hybrid"]["seconds"], runs["floor"]["seconds"]) for runs in (most, least))
        interval = [over["low"] / under["high"], over["high"] / under["low"]]
        what = "step with 200 M rows / with 1 M, each over its dense floor, rows"
        yield bar(what, over["ratio"] / under["ratio"], ROWS_BOUND, False, interval)
