"""The cells of `make bench` and of `make bench-all`."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.common.bench import Cell

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


def _rows(millions: int) -> Cell:
    rows = ",".join([str(millions * 1_000_000 // 26)] * 26)
    return Cell(
        f"rows-{millions}m", "step", f"{millions} M rows in 26 equal tables of dim 16", ("hybrid", "floor"),
        settings=(f"data.table_rows=[{rows}]",),
    )  # fmt: skip


def _waiting(cell: Cell) -> Cell:
    """The same with OpenMP's threads waiting as they do by default: busily. `report` takes what is quicker for each rival."""
    few = tuple(name for name in cell.contestants if name not in SPLIT and name not in ("hotline", "torch SGD"))
    about = f"{cell.about}; OpenMP's threads wait as by default"
    return replace(cell, name=f"{cell.name}-waiting", contestants=few, briefly=False, about=about)


KAGGLE_FP32 = Cell(
    "kaggle-fp32", "step", KAGGLE, ("hybrid", "hotline", "hotline split", "torch SGD", *FUSED, *PLAIN, "floor", "floor split"),
    settings=CUT,
)  # fmt: skip
KAGGLE_BF16 = Cell(
    "kaggle-bf16", "step", f"{KAGGLE}; {AUTOCAST}", ("hybrid", "hotline", *FUSED, "FBGEMM fp16 rows", "floor"),
    settings=(*CUT, *BF16),
)  # fmt: skip
AS_IT_COMES = "TorchRec as it comes: its tables and its DLRM"
DLRM_FP32 = replace(KAGGLE_FP32, name="dlrm-fp32", contestants=WHOLE, about=f"{KAGGLE}; {AS_IT_COMES}")
DLRM_BF16 = replace(KAGGLE_BF16, name="dlrm-bf16", contestants=WHOLE, about=f"{KAGGLE}; {AUTOCAST}; {AS_IT_COMES}")
MLPERF_FP32 = Cell("mlperf-fp32", "step", MLPERF, ("hybrid", *FUSED, *PLAIN, "floor"), "mlperf", CUT_SHORT, steps=1, batches=24)
MLPERF_BF16 = replace(
    MLPERF_FP32, name="mlperf-bf16", contestants=("hybrid", *FUSED, "floor"), about=f"{MLPERF}; {AUTOCAST}",
    settings=(*CUT_SHORT, *BF16),
)  # fmt: skip
EMBEDDING = (
    Cell("embedding-kaggle", "embedding", f"{KAGGLE}; {ALONE}", ("ours", "FBGEMM"), settings=CUT, steps=10),
    Cell("embedding-mlperf", "embedding", f"{MLPERF}; {ALONE}", ("ours", "FBGEMM"), "mlperf", CUT_SHORT, batches=24),
)
CRITEO = Cell("criteo", "step", REAL, ("hybrid", *FUSED, *PLAIN, "floor"), real=True)

QUICK = (
    KAGGLE_FP32,
    KAGGLE_BF16,
    _waiting(KAGGLE_FP32),
    DLRM_FP32,
    DLRM_BF16,
    *EMBEDDING,
    MLPERF_FP32,
    MLPERF_BF16,
    CRITEO,
    Cell("sketch", "sketch", "52 k skewed lookups a batch (Zipf 1.2, a million rows), depth 4, one core"),
    Cell("reading", "reading", "the Criteo sample as TSV, decompressed beforehand"),
    *(_rows(millions) for millions in (1, 10, 50, 200)),
    Cell("skipping", "step", "Criteo Kaggle's tables; as many popular samples dropped as may be", ("no skipping", "dropping")),
    Cell("freezing", "freeze", "Criteo Kaggle's tables; updates of half of every batch's distinct rows left out", steps=10),
    Cell("prefetching", "step", "Criteo Kaggle's tables; 4 batches made ready ahead, or none",
         ("hybrid", "without prefetching")),
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


def rehearsed(cell: Cell) -> Cell:
    """The same on tiny shapes: whether everything runs, and no figure of anything."""
    shape = "tiny" if cell.shape == "kaggle" else "tiny_bags"
    precision = tuple(setting for setting in cell.settings if setting in BF16)
    small: tuple[str, ...] = ("run.threads=1", "knobs.reclassify_every=6")
    if cell.real:
        shape, small = cell.shape, (*small, "data.max_table_rows=1000")
    return replace(cell, shape=shape, settings=(*precision, *small), steps=2, batches=6)
