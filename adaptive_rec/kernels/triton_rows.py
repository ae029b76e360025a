"""Triton kernels of `cuda.py` that compute; those that only copy are in `triton_copies.py`.

A program owns a block of output rows: nothing is added atomically, sums have one order.

A bag's, a piece's or a row's first item is taken alone, as most have no second, then the others CHUNK at a time so that
their loads are under way together. Tiles are (rows, dim) and (rows, CHUNK, dim). D is a constant, so that the compiler knows
how rows are aligned and loads 16 bytes at a time; dims that are no power of two are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from adaptive_rec.kernels.launcher import KernelLauncher
from adaptive_rec.kernels.record import MOST, SALT, TAIL_BYTES
from adaptive_rec.kernels.update_rules import ADAGRAD, LION, ROWWISE_ADAGRAD, SGD

_SGD = tl.constexpr(SGD)
_ROWWISE_ADAGRAD = tl.constexpr(ROWWISE_ADAGRAD)
_ADAGRAD = tl.constexpr(ADAGRAD)
_LION = tl.constexpr(LION)
_TAIL_BYTES = tl.constexpr(TAIL_BYTES)
_RECORD_SALT = tl.constexpr(SALT)
_STEP = tl.constexpr(1 / MOST)

_COUNTS = ["features", "S", "T", "P", "U", "H", "C"]
"""Numbers the compiler must not specialise on: a batch of one sample would compile another kernel."""

_INDICES = [
    "samples_S", "pool_features_T", "offsets", "inverse_N", "source_U", "mean_F", "piece_P1", "segment_bag_N", "column_F",
    "position_B", "piece_U1", "active_U", "active_P", "number_U", "touches_H", "changed_H",
]  # fmt: skip
"""Arrays read item by item: their alignment makes no difference but would compile another kernel."""


@triton.jit
def _row_pointers(source, hot, cold, D: tl.constexpr, d):
    """Where components `d` of rows are, each in the tier it lives in."""
    return tl.where(source >= 0, hot + (source.to(tl.int64) * D + d), cold + ((~source).to(tl.int64) * D + d))


@triton.jit
def _root(x):
    """A correctly rounded root: tl.sqrt of float32 is not, and takes tiny numbers for zero."""
    if x.dtype == tl.float32:
        root = tl.sqrt_rn(x)
    else:
        root = tl.sqrt(x)
    return root


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def gather_pooled(
    samples_S, pool_features_T, features, offsets, inverse_N, source_U, mean_F, hot, cold, out, S, T,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (i, t): ROWS samples of one feature. They follow each other, so programs side by side share a hot table."""
    SUM: tl.constexpr = tl.float64 if out.dtype.element_ty == tl.float64 else tl.float32
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    t = tl.program_id(1)
    feature = tl.load(pool_features_T + t)
    sample = tl.load(samples_S + line, mask=line < S, other=-1)
    bag = sample * features + feature
    start = tl.load(offsets + bag, mask=sample >= 0, other=0)
    length = tl.load(offsets + bag + 1, mask=sample >= 0, other=0) - start
    d = tl.arange(0, BLOCK_D)

    u = tl.load(inverse_N + start, mask=length > 0, other=0)
    source = tl.load(source_U + u, mask=length > 0, other=0)
    row = _row_pointers(source[:, None], hot, cold, D, d[None, :])
    total = tl.load(row, mask=(length > 0)[:, None] & (d < D)[None, :], other=0.0).to(SUM)
    for first in range(1, tl.max(length, axis=0), CHUNK):
        item = first + tl.arange(0, CHUNK)[None, :]
        inside = item < length[:, None]
        items_u = tl.load(inverse_N + start[:, None] + item, mask=inside, other=0)
        sources = tl.load(source_U + items_u, mask=inside, other=0)
        rows = _row_pointers(sources[:, :, None], hot, cold, D, d[None, None, :])
        values = tl.load(rows, mask=inside[:, :, None] & (d < D)[None, None, :], other=0.0)
        total += tl.sum(values.to(SUM), axis=1)

    if tl.load(mean_F + feature) != 0:
        total *= (1.0 / tl.maximum(length, 1).to(SUM))[:, None]
    place = (line.to(tl.int64) * T + t) * D
    tl.store(out + place[:, None] + d[None, :], total, mask=(line < S)[:, None] & (d < D)[None, :])


@triton.jit
def _gradients(
    k, inside, segment_bag_N, features, offsets, column_F, mean_F, position_B, T, D: tl.constexpr, SUM: tl.constexpr
):
    """For touching bags: where their gradients lie, what to multiply them by, and whether their sample was trained."""
    bag = tl.load(segment_bag_N + k, mask=inside, other=0)
    sample = bag // features
    feature = bag - sample * features
    line = tl.load(position_B + sample, mask=inside, other=-1)
    trained = line >= 0
    column = tl.load(column_F + feature, mask=trained, other=0)
    averaged = trained & (tl.load(mean_F + feature, mask=trained, other=0) != 0)
    end = tl.load(offsets + bag + 1, mask=averaged, other=1)
    length = end - tl.load(offsets + bag, mask=averaged, other=0)
    return (line.to(tl.int64) * T + column) * D, 1.0 / length.to(SUM), trained


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def sum_pieces(
    piece_P1, segment_bag_N, features, offsets, column_F, mean_F, position_B, grad, partial, active_P, T, P,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program i: ROWS pieces. Pieces of one row follow each other, so long pieces mostly meet long ones."""
    SUM: tl.constexpr = partial.dtype.element_ty
    p = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    active = p < P
    if active_P is not None:
        active = active & (tl.load(active_P + p, mask=active, other=0) != 0)
    start = tl.load(piece_P1 + p, mask=active, other=0)
    length = tl.load(piece_P1 + p + 1, mask=active, other=0) - start
    d = tl.arange(0, BLOCK_D)

    place, scale, trained = _gradients(
        start, length > 0, segment_bag_N, features, offsets, column_F, mean_F, position_B, T, D, SUM
    )
    row = grad + place[:, None] + d[None, :]
    total = tl.load(row, mask=trained[:, None] & (d < D)[None, :], other=0.0).to(SUM) * scale[:, None]
    for first in range(1, tl.max(length, axis=0), CHUNK):
        item = first + tl.arange(0, CHUNK)[None, :]
        places, scales, mask = _gradients(
            start[:, None] + item, item < length[:, None], segment_bag_N, features, offsets, column_F, mean_F, position_B,
            T, D, SUM,
        )  # fmt: skip
        rows = grad + places[:, :, None] + d[None, None, :]
        values = tl.load(rows, mask=mask[:, :, None] & (d < D)[None, None, :], other=0.0)
        total += tl.sum(values.to(SUM) * scales[:, :, None], axis=1)
    tl.store(partial + p.to(tl.int64)[:, None] * D + d[None, :], total, mask=active[:, None] & (d < D)[None, :])


@triton.jit
def _row_gradient(u, active, piece_U1, partial, D: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr):
    """Sum of the pieces of each row."""
    start = tl.load(piece_U1 + u, mask=active, other=0)
    pieces = tl.load(piece_U1 + u + 1, mask=active, other=0) - start
    d = tl.arange(0, BLOCK_D)
    row = partial + start.to(tl.int64)[:, None] * D + d[None, :]
    total = tl.load(row, mask=(pieces > 0)[:, None] & (d < D)[None, :], other=0.0)
    for first in range(1, tl.max(pieces, axis=0), CHUNK):
        item = first + tl.arange(0, CHUNK)[None, :]
        rows = partial + (start[:, None] + item).to(tl.int64)[:, :, None] * D + d[None, None, :]
        mask = (item < pieces[:, None])[:, :, None] & (d < D)[None, None, :]
        total += tl.sum(tl.load(rows, mask=mask, other=0.0), axis=1)
    return total


@triton.jit
def _dice(step_bits, number, d):
    """32 random bits for components `d` of rows, those of `rows16.row_dice` and `rows16.dice`."""
    x = step_bits + number
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93
    bits = (x >> 32).to(tl.uint32)[:, None] + (d.to(tl.uint32) * 0x9E3779B9)[None, :]
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _rounded(values, random, TYPE: tl.constexpr):
    """Float32 numbers rounded to bfloat16 or half precision by random bits, as `rows16` does it and explains it."""
    bits = values.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    nan = magnitude > 0x7F800000
    if TYPE == tl.bfloat16:
        found = tl.where(nan, 0x7FC00000, bits + (random >> 16)) >> 16
    else:
        rounded = (magnitude + (random >> 19)) >> 13
        normal = tl.where(rounded < (143 << 10), rounded - (112 << 10), 0x7C00)
        tiny = magnitude < (113 << 23)
        steps = (tl.where(tiny, magnitude.to(tl.float32, bitcast=True), 0.0) * 17592186044416.0).to(tl.int32)
        small = ((steps + (random >> 12).to(tl.int32)) >> 20).to(tl.uint32)
        found = tl.where(nan, 0x7E00, tl.where(tiny, small, normal)) | ((bits & 0x80000000) >> 16)
    return found.to(tl.uint16).to(TYPE, bitcast=True)


@triton.jit
def _power_above(values):
    """As `record._power_above`."""
    bits = values.to(tl.int32, bitcast=True)
    return (tl.minimum((bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32), 253) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _whole_steps(sums, scale, dice):
    """Sums as whole steps of their rows' scales, rounded by random bits as `record` does it."""
    bits = scale.to(tl.int32, bitcast=True)
    inverse = tl.where(bits > 0, (254 << 23) - bits, 0).to(tl.float32, bitcast=True)
    steps = sums * inverse[:, None]
    low = tl.floor(steps)
    found = low + (steps - low > (dice >> 8).to(tl.float32) * 5.9604644775390625e-08).to(tl.float32)
    found = tl.where(found == found, found, 0.0)
    return tl.minimum(tl.maximum(found, -127.0), 127.0).to(tl.int8)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def apply_rows(
    hyper, piece_U1, partial, source_U, active_U, hot, hot_state, cold, cold_state, record, tails, touches_H, changed_H, number_U,
    step_bits, overflow, U,
    RULE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program i: ROWS distinct rows, read, updated and written once.

    One warp: threads of several would hold copies of the same component, as of row-wise Adagrad's square, and a slow warp
    would read what a quick one has written.
    """
    SUM: tl.constexpr = partial.dtype.element_ty
    u = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    active = (tl.load(active_U + u, mask=u < U, other=0) != 0) & (u < U)
    source = tl.load(source_U + u, mask=active, other=0)
    grad = _row_gradient(u, active, piece_U1, partial, D, BLOCK_D, CHUNK)
    d = tl.arange(0, BLOCK_D)
    mask = active[:, None] & (d < D)[None, :]
    weights = _row_pointers(source[:, None], hot, cold, D, d[None, :])
    before = tl.load(weights, mask=mask, other=0.0).to(SUM)
    rate = tl.load(hyper)
    eps = tl.load(hyper + 1).to(SUM)

    if RULE == _SGD:
        after = before - rate.to(SUM) * grad
    elif RULE == _ROWWISE_ADAGRAD:
        states = _row_pointers(source, hot_state, cold_state, 1, 0)
        square = tl.load(states, mask=active, other=0.0).to(SUM) + tl.sum(grad * grad, axis=1) / D
        tl.store(states, square, mask=active)
        after = before - (rate.to(SUM) / (_root(square) + eps))[:, None] * grad
    elif RULE == _ADAGRAD:
        states = _row_pointers(source[:, None], hot_state, cold_state, D, d[None, :])
        square = tl.load(states, mask=mask, other=0.0).to(SUM) + grad * grad
        tl.store(states, square, mask=mask)
        after = before - rate.to(SUM) * grad / (_root(square) + eps)
    elif RULE == _LION:
        beta1 = tl.load(hyper + 2)
        beta2 = tl.load(hyper + 3)
        states = _row_pointers(source[:, None], hot_state, cold_state, D, d[None, :])
        moment = tl.load(states, mask=mask, other=0.0).to(SUM)
        towards = beta1.to(SUM) * moment + (1 - beta1).to(SUM) * grad
        tl.store(states, beta2.to(SUM) * moment + (1 - beta2).to(SUM) * grad, mask=mask)
        change = tl.where(towards > 0, rate.to(SUM), tl.where(towards < 0, -rate.to(SUM), towards))
        after = before - change
    else:
        beta1 = tl.load(hyper + 2)
        beta2 = tl.load(hyper + 3)
        states = _row_pointers(source[:, None], hot_state, cold_state, 2 * D, d[None, :])
        first = tl.load(states, mask=mask, other=0.0).to(SUM)
        second = tl.load(states + D, mask=mask, other=0.0).to(SUM)
        # 1 - beta in float64: of 0.999 in float32, one digit in 30,000 would be wrong.
        first = beta1.to(SUM) * first + (1 - beta1).to(SUM) * grad
        second = beta2.to(SUM) * second + (1 - beta2).to(SUM) * grad * grad
        tl.store(states, first, mask=mask)
        tl.store(states + D, second, mask=mask)
        after = before - (rate * tl.load(hyper + 4)).to(SUM) * first / (_root(second) + eps)

    if number_U is not None:
        number = tl.load(number_U + u, mask=active, other=0).to(tl.uint64)
        stored = _rounded(after.to(tl.float32), _dice(tl.load(step_bits).to(tl.uint64), number, d), hot.dtype.element_ty)
    else:
        stored = after.to(hot.dtype.element_ty)
    tl.store(weights, stored, mask=mask)
    if overflow is not None:
        bad = mask & ((stored.to(tl.uint16, bitcast=True) & 0x7FFF) >= 0x7C00)
        tl.store(overflow, 1, mask=tl.max(tl.max(bad.to(tl.int32), axis=1), axis=0) != 0)
    if changed_H is not None:
        tl.store(changed_H + source, 1, mask=active & (source >= 0))
    if record is not None:
        hot_row = active & (source >= 0)
        mask = mask & hot_row[:, None]
        R: tl.constexpr = (D + 3) // 4 * 4 + _TAIL_BYTES
        slot = source.to(tl.int64)
        touches = tl.load(touches_H + source, mask=hot_row, other=0)
        moved = tl.where(mask, stored.to(SUM) - before, 0.0).to(tl.float32)
        dice = _dice(_RECORD_SALT, (touches.to(tl.uint64) << 32) + slot.to(tl.uint64), d)
        places = record + (slot * R)[:, None] + d[None, :]
        tail = tails + slot * (R // 4) + R // 4 - 2
        scale = tl.load(tail, mask=hot_row, other=0.0)
        sums = tl.load(places, mask=mask, other=0).to(tl.float32) * scale[:, None] + moved
        scale = tl.maximum(scale, _power_above(tl.max(tl.abs(sums), axis=1) * _STEP))
        tl.store(places, _whole_steps(sums, scale, dice), mask=mask)
        tl.store(tail, scale, mask=hot_row)
        square = tl.load(tail + 1, mask=hot_row, other=0.0) + tl.sum(moved * moved, axis=1)
        tl.store(tail + 1, square, mask=hot_row)
        tl.store(touches_H + source, touches + 1, mask=hot_row)


@KernelLauncher
@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_INDICES)
def movement(
    record, tails, weights, out, H,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    SUM: tl.constexpr = out.dtype.element_ty
    h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d, inside = tl.arange(0, BLOCK_D), h < H
    mask = inside[:, None] & (d < D)[None, :]
    R: tl.constexpr = (D + 3) // 4 * 4 + _TAIL_BYTES
    slot = h.to(tl.int64)
    tail = tails + slot * (R // 4) + R // 4 - 2
    scale = tl.load(tail, mask=inside, other=0.0).to(SUM)
    square = tl.load(tail + 1, mask=inside, other=0.0).to(SUM)
    change = tl.load(record + slot[:, None] * R + d[None, :], mask=mask, other=0).to(SUM) * scale[:, None]
    row = tl.load(weights + slot[:, None] * D + d[None, :], mask=mask, other=0.0).to(SUM)
    known = tl.abs(square) < float("inf")  # a row with a component that is no number must show it
    to = out + slot * 4
    tl.store(to, tl.where(known, tl.max(tl.abs(change), axis=1), square), mask=inside)
    tl.store(to + 1, tl.where(known, _root(tl.sum(change * change, axis=1)), square), mask=inside)
    tl.store(to + 2, _root(tl.sum(row * row, axis=1)), mask=inside)
    tl.store(to + 3, square, mask=inside)
