"""These intrinsics reach memory: a row of a table is loaded before it is read, an array is read by its address."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_BYTES = 64
"""Bytes of a cache line."""

_FOR_READING, _KEEP, _DATA = 0, 3, 1
"""Arguments of LLVM's prefetch: the access, how long to keep the line in the caches, and that it is data."""


@intrinsic
def prefetch_row(typing_context, table_RD, row):
    """Start loading ``table_RD[row]``. Any row number is safe: a bad address is ignored."""

    def generate(context, builder, signature, arguments):
        table_type = signature.args[0]
        table = context.make_array(table_type)(context, builder, arguments[0])
        int32, int64, pointer = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
        distance = builder.mul(builder.extract_value(table.strides, 0), arguments[1])
        address = builder.gep(builder.bitcast(table.data, pointer), [distance])
        kind = ir.FunctionType(ir.VoidType(), [pointer, int32, int32, int32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        how = [ir.Constant(int32, what) for what in (_FOR_READING, _KEEP, _DATA)]
        builder.call(prefetch, [address, *how])
        if table_type.ndim == 2:  # the lines after the first
            components = builder.extract_value(table.shape, 1)
            bytes_ = builder.mul(components, ir.Constant(int64, table_type.dtype.bitwidth // 8))
            lines = builder.udiv(builder.sub(bytes_, ir.Constant(int64, 1)), ir.Constant(int64, LINE_BYTES))
            some = builder.icmp_signed(">", bytes_, ir.Constant(int64, LINE_BYTES))
            with builder.if_then(some, likely=False), cgutils.for_range(builder, lines) as loop:
                place = builder.mul(builder.add(loop.index, ir.Constant(int64, 1)), ir.Constant(int64, LINE_BYTES))
                builder.call(prefetch, [builder.gep(address, [place]), *how])
        return context.get_dummy_value()

    return types.void(table_RD, types.int64), generate


@intrinsic
def pointer_to(typing_context, address):
    """Return a pointer for `carray` to an address; the caller keeps the array that is there."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate
