"""These intrinsics add up, measure and change rows with the processor's vector registers.

Numba's own loops cannot do that: the compiler does not know that rows and their sum lie in different memory, so it loads
and stores the sum for every row, behind a check for overlap. The plain twins are in `reference/row_vectors.py`. Arrays are
C-contiguous, and callers check bounds; they call these functions through `rows16.py`, which knows rows of 16 bits too. Rows
are of 32 or 64 bits; those of `sum_rows` may be bfloat16 bit patterns (see `rows16.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INT64 = ir.IntType(64)
_BYTE = ir.IntType(8).as_pointer()
_REASSOCIATED = ("reassoc", "nsz", "contract", "arcp")

_CHUNKS = ((64, 8), (64, 1), (16, 1), (0, 1))
"""How a row is cut: bytes of a vector (0: one component), and vectors at a time. 8 of 64 bytes are a quarter of the registers
of AVX-512, and half of those of AVX2."""


def _chunks(builder: Any, dim: Any, component_bytes: int, emit: Callable[[Any, int, int], None]) -> None:
    """Cut `dim` components into chunks; `emit` writes the code of one, from its first component, lanes and vectors."""
    first = cgutils.alloca_once_value(builder, ir.Constant(_INT64, 0))
    for vector_bytes, vectors in _CHUNKS:
        lanes = max(vector_bytes // component_bytes, 1)
        head, body, end = (builder.append_basic_block(name) for name in ("chunk", "chunk.body", "chunk.end"))
        builder.branch(head)
        builder.position_at_end(head)
        begin = builder.load(first)
        after = builder.add(begin, ir.Constant(_INT64, lanes * vectors))
        builder.cbranch(builder.icmp_signed("<=", after, dim), body, end)
        builder.position_at_end(body)
        emit(begin, lanes, vectors)
        builder.store(after, first)
        builder.branch(head)
        builder.position_at_end(end)


class _Line:
    """A line of a 2-D array in generated code: vectors of its components are loaded from it and stored to it."""

    def __init__(self, builder: Any, start: Any, kind: Any) -> None:
        self._builder, self._start, self._kind = builder, start, kind
        self.bytes = kind.bitwidth // 8
        self.component = ir.DoubleType() if kind == types.float64 else ir.FloatType()

    @staticmethod
    def of(context: Any, builder: Any, kind: Any, array: Any, line: Any) -> _Line:
        found = context.make_array(kind)(context, builder, array)
        distance = builder.mul(line, builder.extract_value(found.strides, 0))
        return _Line(builder, builder.gep(builder.bitcast(found.data, _BYTE), [distance]), kind.dtype)

    def type_of(self, lanes: int) -> Any:
        return ir.VectorType(self.component, lanes) if lanes > 1 else self.component

    def _at(self, first: Any, v: int, lanes: int, kind: Any) -> Any:
        place = self._builder.add(first, ir.Constant(_INT64, v * lanes))
        start = self._builder.gep(self._start, [self._builder.mul(place, ir.Constant(_INT64, self.bytes))])
        return self._builder.bitcast(start, kind.as_pointer())

    def load(self, first: Any, v: int, lanes: int) -> Any:
        """Load vector `v` of the chunk from component `first` on; bfloat16 as float32."""
        builder = self._builder
        if self._kind != types.uint16:
            return builder.load(self._at(first, v, lanes, self.type_of(lanes)), align=self.bytes)
        int16, int32 = (
            (ir.VectorType(ir.IntType(bits), lanes) if lanes > 1 else ir.IntType(bits)) for bits in (16, 32)
        )
        pattern = builder.load(self._at(first, v, lanes, int16), align=self.bytes)
        sixteen = ir.Constant(int32, [16] * lanes if lanes > 1 else 16)
        return builder.bitcast(builder.shl(builder.zext(pattern, int32), sixteen), self.type_of(lanes))

    def store(self, value: Any, first: Any, v: int, lanes: int) -> None:
        self._builder.store(value, self._at(first, v, lanes, self.type_of(lanes)), align=self.bytes)


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector of so many times the same number."""
    if lanes == 1:
        return value
    vector, int32 = ir.VectorType(value.type, lanes), ir.IntType(32)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(int32, 0))
    places = ir.Constant(ir.VectorType(int32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), places)


def _zero(kind: Any, lanes: int) -> Any:
    return ir.Constant(kind, [0.0] * lanes if lanes > 1 else 0.0)


@intrinsic
def sum_rows(typing_context, hot_HD, cold_RD, source_N, start, stop, out_LD, line):
    """Set ``out_LD[line]`` to the sum of the rows ``source_N[start:stop]``: a hot row's slot, or ``~row`` of a cold one. Nothing
    listed: zeros. The tiers of the rows do not change the sum.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        hot_type, cold_type, source_type, _, _, out_type, _ = signature.args
        start, stop, line = arguments[3], arguments[4], arguments[6]
        hot, cold, source = (
            context.make_array(kind)(context, builder, array)
            for kind, array in zip(signature.args[:3], arguments[:3], strict=True)
        )
        out = _Line.of(context, builder, out_type, arguments[5], line)
        dim = builder.extract_value(context.make_array(out_type)(context, builder, arguments[5]).shape, 1)
        bits = source_type.dtype.bitwidth
        numbers = builder.bitcast(source.data, ir.IntType(bits).as_pointer())
        tiers = [(builder.bitcast(tier.data, _BYTE), builder.extract_value(tier.strides, 0)) for tier in (hot, cold)]

        def row_at(n: Any) -> _Line:
            number = builder.load(builder.gep(numbers, [n]))
            number = number if bits == 64 else builder.sext(number, _INT64)
            is_hot = builder.icmp_signed(">=", number, ir.Constant(_INT64, 0))
            row = builder.select(is_hot, number, builder.not_(number))
            data, stride = (builder.select(is_hot, hot, cold) for hot, cold in zip(*tiers, strict=True))
            return _Line(builder, builder.gep(data, [builder.mul(row, stride)]), cold_type.dtype)

        def sum_chunk(first: Any, lanes: int, vectors: int) -> None:
            kind = out.type_of(lanes)
            before = builder.block
            head, body, end = (builder.append_basic_block(name) for name in ("rows", "rows.body", "rows.end"))
            builder.branch(head)
            builder.position_at_end(head)
            n = builder.phi(_INT64)
            sums = [builder.phi(kind) for _ in range(vectors)]
            builder.cbranch(builder.icmp_signed("<", n, stop), body, end)
            builder.position_at_end(body)
            row = row_at(n)
            longer = [builder.fadd(total, row.load(first, v, lanes)) for v, total in enumerate(sums)]
            after = builder.add(n, ir.Constant(_INT64, 1))
            for phi, at_first, later in (
                (n, start, after),
                *((s, _zero(kind, lanes), x) for s, x in zip(sums, longer, strict=True)),
            ):
                phi.add_incoming(at_first, before)
                phi.add_incoming(later, builder.block)
            builder.branch(head)
            builder.position_at_end(end)
            for v, total in enumerate(sums):
                out.store(total, first, v, lanes)

        _chunks(builder, dim, out.bytes, sum_chunk)
        return context.get_dummy_value()

    return types.void(hot_HD, cold_RD, source_N, types.int64, types.int64, out_LD, types.int64), generate


@intrinsic
def sum_of_squares(typing_context, values_LD, line):
    """Return the sum of the squares of ``values_LD[line]``, which are of 32 or 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = _Line.of(context, builder, signature.args[0], *arguments)
        dim = builder.extract_value(context.make_array(signature.args[0])(context, builder, arguments[0]).shape, 1)
        total = cgutils.alloca_once_value(builder, ir.Constant(values.component, 0.0))

        def add_chunk(first: Any, lanes: int, vectors: int) -> None:
            kind = values.type_of(lanes)
            squares: Any = None
            for v in range(vectors):
                value = values.load(first, v, lanes)
                square = builder.fmul(value, value)
                squares = square if squares is None else builder.fadd(squares, square, flags=_REASSOCIATED)
            if lanes > 1:
                name = f"llvm.vector.reduce.fadd.v{lanes}f{values.bytes * 8}"
                function = ir.FunctionType(values.component, [values.component, kind])
                reduce = cgutils.get_or_insert_function(builder.module, function, name)
                squares = builder.call(reduce, [ir.Constant(values.component, 0.0), squares], fastmath=_REASSOCIATED)
            builder.store(builder.fadd(builder.load(total), squares), total)

        _chunks(builder, dim, values.bytes, add_chunk)
        return builder.load(total)

    return values_LD.dtype(values_LD, types.int64), generate


@intrinsic
def subtract_scaled(typing_context, rows_RD, row, scale, values_LD, line):
    """Subtract ``scale * values_LD[line]`` from ``rows_RD[row]``. All are of the same 32 or 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows_type, _, scale_type, values_type, _ = signature.args
        rows, row, scale, values, line = arguments
        target = _Line.of(context, builder, rows_type, rows, row)
        change = _Line.of(context, builder, values_type, values, line)
        dim = builder.extract_value(context.make_array(values_type)(context, builder, values).shape, 1)
        scale = context.cast(builder, scale, scale_type, rows_type.dtype)

        def change_chunk(first: Any, lanes: int, vectors: int) -> None:
            factor = _spread(builder, scale, lanes)
            for v in range(vectors):
                product = builder.fmul(factor, change.load(first, v, lanes), flags=_REASSOCIATED)
                target.store(builder.fsub(target.load(first, v, lanes), product, flags=_REASSOCIATED), first, v, lanes)

        _chunks(builder, dim, target.bytes, change_chunk)
        return context.get_dummy_value()

    return types.void(rows_RD, types.int64, scale, values_LD, types.int64), generate
