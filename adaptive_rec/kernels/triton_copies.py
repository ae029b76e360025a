"""Triton kernels of `cuda.py` that copy rows and lines and compute nothing: any bits arrive as they are."""

from __future__ import annotations

import triton
import triton.language as tl

from adaptive_rec.kernels.launcher import KernelLauncher

COUNTS = ["C", "S"]
"""Numbers the compiler must not specialise on, see `triton_rows.py`."""

INDICES = [
    "from_rows_C", "to_rows_C", "table", "from_rows_R", "to_rows_R", "samples_S", "dense", "labels_B", "scale_S", "dense_out",
    "labels_out", "scale_out",
]  # fmt: skip
"""Arrays whose alignment makes no difference but would compile another kernel."""


@KernelLauncher
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=INDICES)
def copy_rows(
    source, from_rows_C, target, to_rows_C, C, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    c = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    mask = (c < C)[:, None] & (d < D)[None, :]
    if from_rows_C is not None:
        taken = tl.load(from_rows_C + c, mask=c < C, other=0)
    else:
        taken = c
    if to_rows_C is not None:
        place = tl.load(to_rows_C + c, mask=c < C, other=0)
    else:
        place = c
    rows = tl.load(source + taken.to(tl.int64)[:, None] * D + d[None, :], mask=mask)
    tl.store(target + place.to(tl.int64)[:, None] * D + d[None, :], rows, mask=mask)


@KernelLauncher
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=INDICES)
def take_rows(table, from_rows_R, to_rows_R, UNIT_BYTES: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Program (i, s): ROWS rows of line s of the table, first their weights, then their state."""
    UNIT: tl.constexpr = tl.int32 if UNIT_BYTES == 4 else tl.int16
    line = table + tl.program_id(1) * 8
    first = tl.load(line)
    count = tl.load(line + 1)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = r < count
    taken = tl.load(from_rows_R + first + r, mask=inside, other=0).to(tl.int64)
    place = tl.load(to_rows_R + first + r, mask=inside, other=0).to(tl.int64)
    for array in tl.static_range(2):
        source = tl.load(line + 2 + 3 * array).to(tl.pointer_type(UNIT))
        target = tl.load(line + 3 + 3 * array).to(tl.pointer_type(UNIT))
        units = tl.load(line + 4 + 3 * array) // UNIT_BYTES
        for start in range(0, units, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            mask = inside[:, None] & (d < units)[None, :]
            values = tl.load(source + taken[:, None] * units + d[None, :], mask=mask)
            tl.store(target + place[:, None] * units + d[None, :], values, mask=mask)


@KernelLauncher
@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=INDICES)
def fill_lines(
    samples_S, dense, labels_B, scale_S, dense_out, labels_out, scale_out, S,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program i: ROWS lines of a micro-batch."""
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = line < S
    sample = tl.maximum(tl.load(samples_S + line, mask=inside, other=0), 0)
    tl.store(labels_out + line, tl.load(labels_B + sample, mask=inside), mask=inside)
    tl.store(scale_out + line, tl.load(scale_S + line, mask=inside), mask=inside)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        values = tl.load(dense + sample.to(tl.int64)[:, None] * D + d[None, :], mask=mask)
        tl.store(dense_out + line.to(tl.int64)[:, None] * D + d[None, :], values, mask=mask)
