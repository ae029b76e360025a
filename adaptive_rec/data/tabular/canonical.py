"""Arrow arrays of any type as arrays of a few types, each of which holds the same values.

What comes out is null, bool, int8 to int64, uint8 to uint64, float32, float64, decimal128, decimal256, string, binary, a type of
times, a list of one of these, or a nested type, which nothing reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

UUID_BYTES = 16
UUID_PLACES = [x for x in range(36) if x not in (8, 13, 18, 23)]
"""The places of a UUID's digits in its text; the others hold a dash."""
PERIODS = {"Y": "Y", "A": "Y", "M": "M", "D": "D", "H": "h", "T": "m", "MIN": "m", "S": "s", "L": "ms", "MS": "ms", "U": "us",
           "US": "us", "N": "ns", "NS": "ns"}  # fmt: skip
"""NumPy's name of each unit of pandas' periods that counts from 1970 on; both write the number of a period alike."""
EXTENSION_NAME, EXTENSION_DETAILS = b"ARROW:extension:name", b"ARROW:extension:metadata"


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `canonical_batch` returns batches of."""
    import pyarrow as pa

    kinds = [canonical(pa.nulls(0, field.type), field.metadata).type for field in schema]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def canonical_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a batch in types that the readers know. Raises pyarrow.ArrowException for values that cannot be
    read."""
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        try:
            columns.append(canonical(column, field.metadata))
            _check_texts(columns[-1])
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(f"column {field.name}: {error}") from None
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    schema = pa.schema([(name, column.type) for name, column in zip(batch.schema.names, columns, strict=True)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def canonical(array: pa.Array, metadata: Mapping[bytes, bytes] | None = None) -> pa.Array:
    """Return an array in a type that the readers know, or as it is where it has one. `metadata` is that of its field, which names
    an extension that pyarrow has no class of."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind: Any = array.type
    if isinstance(kind, pa.BaseExtensionType):
        details = kind.__arrow_ext_serialize__() if isinstance(kind, pa.ExtensionType) else b""
        return _of_extension(canonical(array.storage), kind.extension_name, details)
    name = (metadata or {}).get(EXTENSION_NAME, b"").decode(errors="replace")
    if name:
        return _of_extension(canonical(array), name, (metadata or {}).get(EXTENSION_DETAILS, b""))
    if pa.types.is_dictionary(kind):
        return canonical(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return canonical(pc.run_end_decode(array))
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return array.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == UUID_BYTES:
        return _uuid_texts(array)
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_decimal(kind):
        return _decimals(array)
    if _is_any_list(kind):
        return _lists(array)
    return array


def _check_texts(array: pa.Array) -> None:
    """Raise pyarrow.ArrowInvalid where texts are not in UTF-8: some programs write bytes as texts."""
    import pyarrow as pa

    kind: Any = array.type
    if pa.types.is_string(kind) or pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        array.validate(full=True)


def _of_extension(array: pa.Array, name: str, details: bytes) -> pa.Array:
    """Return the values that an extension's storage stands for, as far as they are others than the storage."""
    import pyarrow as pa

    if name == "arrow.bool8":
        return array.cast(pa.bool_())
    unit = PERIODS.get(_frequency(details)) if name == "pandas.period" else None
    if unit is None:
        return array
    missing_B = array.is_null().to_numpy(zero_copy_only=False)
    numbers_B = array.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    step = "ns" if unit == "ns" else "us"
    return pa.array(numbers_B.astype(f"M8[{unit}]").astype(f"M8[{step}]"), pa.timestamp(step), mask=missing_B)


def _frequency(details: bytes) -> str:
    """Return the unit of pandas' periods, without the month that ends a year."""
    try:
        return str(json.loads(details)["freq"]).upper().removesuffix("-DEC").removesuffix("E")
    except (ValueError, KeyError, TypeError):
        return ""


def _uuid_texts(array: pa.Array) -> pa.Array:
    """Return 16 bytes as the text of a UUID: 123e4567-e89b-12d3-a456-426614174000."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = len(array)
    values = array.buffers()[1]
    if not rows or values is None:
        return pa.nulls(rows, pa.string())
    bytes_B16 = np.frombuffer(values, np.uint8)[UUID_BYTES * array.offset :][: UUID_BYTES * rows].reshape(rows, -1)
    text_BW: NDArray[np.uint8] = np.full((rows, 36), ord("-"), dtype=np.uint8)
    halves_BW = np.stack([bytes_B16 >> 4, bytes_B16 & 15], axis=2).reshape(rows, 2 * UUID_BYTES)
    text_BW[:, UUID_PLACES] = np.frombuffer(b"0123456789abcdef", np.uint8)[halves_BW]
    offsets = np.arange(0, 36 * rows + 1, 36, dtype=np.int32)
    texts = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text_BW))
    return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), texts) if array.null_count else texts


def _decimals(array: pa.Array) -> pa.Array:
    """Return decimals of 128 or 256 bits whose scale is not negative."""
    import pyarrow as pa

    kind: Any = array.type
    if kind.scale < 0:
        return array.cast(pa.decimal256(76, 0))
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return array
    return array.cast(pa.decimal128(kind.precision, kind.scale))


def _is_any_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    of = pa.types
    return bool(
        of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind)
        or of.is_list_view(kind) or of.is_large_list_view(kind)
    )  # fmt: skip


def _lists(array: pa.Array) -> pa.Array:
    """Return lists of whatever layout as lists of values in a known type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind: Any = array.type
    field = kind.value_field
    if pa.types.is_list(kind) and canonical(pa.nulls(0, field.type), field.metadata).type == field.type:
        return array
    values = canonical(array.flatten(), field.metadata)
    lengths_B = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths_B)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=array.is_null() if array.null_count else None)
