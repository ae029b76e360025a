"""The cells of `make roofline`: a kernel on a kind of data each."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.common.bench import Cell

MACHINE, PARSING = "machine", "parsing, one thread"
KERNELS = ("distinct rows", "gather", "segment sum and update", "sketch, one thread")
WHO = ("roof", "in cache", "ours", "rival")


def _cell(kernel: str, of: str, shape: str, settings: tuple[str, ...], batches: int) -> Cell:
    name = f"{kernel.split(',')[0].replace(' ', '-')}-{shape}"
    return Cell(name, f"{kernel}, {of}", WHO, kernel, shape, settings, batches=batches)


CELLS = (
    Cell(MACHINE, "what the memory of this machine gives", kind=MACHINE),
    *(_cell(kernel, "Kaggle", "kaggle", ("data.max_table_rows=8000000",), 48) for kernel in KERNELS),
    *(_cell(kernel, "MLPerf multi-hot", "mlperf", ("data.max_table_rows=500000",), 12) for kernel in KERNELS),
    Cell("parsing", f"{PARSING}, Criteo text", WHO, PARSING, data="criteo_kaggle_sample_137k.tsv.zst"),
)


def rehearsed(cell: Cell) -> Cell:
    return replace(cell, shape="tiny" if cell.shape == "kaggle" else "tiny_bags", settings=(), batches=4)
