"""Safetensors files, written from arrays in memory and read part by part.

The safetensors library can read these files. It is not used here: its writer needs whole tensors, opens files itself and does not
sync them, and its reader permits a header of 100 MB in a damaged file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files, Output, os_errors
from adaptive_rec.checkpoint.limited_json import VALUES, check_limits, parse_limited_json
from adaptive_rec.errors import CheckpointError

BLOCK_BYTES = 4 << 20
"""Size of the parts in which an array that is not contiguous is copied."""

HEADER_BYTES = 4 << 20
MAX_DIMENSIONS = 32

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
"""Array types of the format's types. NumPy has no bfloat16, so its arrays hold bit patterns."""

PATTERNS = {np.dtype(np.uint16): "BF16", np.dtype(np.int16): "F16"}
"""Types of the format for arrays of 16-bit patterns; see `embedding/row_types.py`."""

_PATTERN_TYPES = {name: dtype for dtype, name in PATTERNS.items()}
_TYPES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class ArrayInParts:
    """An array that is written in parts of some rows each; 16-bit floats of torch are bit patterns."""

    shape: tuple[int, ...]
    type: str
    """Name of the type in the format."""
    parts: Iterable[NDArray[Any]]

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.type]

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def write_arrays(out: Output, arrays: Mapping[str, NDArray[Any]], types: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file without a whole copy of any array.

    `types`: the format's types of arrays of bit patterns, such as ``{"weight": "BF16"}`` for an array of uint16.
    """
    types = types or {}
    write_parts(
        out,
        {
            name: ArrayInParts(array.shape, _type_of(name, array, types.get(name)), _pieces(array))
            for name, array in arrays.items()
        },
    )


def write_parts(out: Output, arrays: Mapping[str, ArrayInParts]) -> None:
    """The same of arrays that come part by part."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that each array is aligned
    header, end = {}, 0
    for name in order:
        array, start = arrays[name], end
        end += array.size_bytes
        header[name] = {"dtype": array.type, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    check_limits(text, Path("the header of a checkpoint's arrays"), VALUES)
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        raise CheckpointError(f"names and shapes of arrays must take {HEADER_BYTES} bytes or fewer, got {len(text)}")
    out.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        for part in arrays[name].parts:
            out.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)


def _type_of(name: str, array: NDArray[Any], given: str | None) -> str:
    kind = given or _TYPES.get(array.dtype, "")
    if kind not in DTYPES or DTYPES[kind].itemsize != array.dtype.itemsize or array.dtype not in _TYPES:
        raise CheckpointError(
            f"array {name} must be of a type that safetensors has, got {array.dtype}{f' as {given}' if given else ''}"
        )
    return kind


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if array.flags.c_contiguous:
        yield array
        return
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // array.shape[0]))
    for start in range(0, array.shape[0], rows):
        yield np.ascontiguousarray(array[start : start + rows])


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: its type in the format, its shape, and the place of its bytes."""

    type: str
    shape: tuple[int, ...]
    start_byte: int
    size_bytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays that it is read into."""
        return DTYPES[self.type]


def array_type(stored: StoredArray) -> np.dtype[Any]:
    """Return the type of the arrays in which a run keeps such numbers; 16-bit floats are bit patterns."""
    return _PATTERN_TYPES.get(stored.type, stored.dtype)


def as_numbers(rows: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return rows as numbers that NumPy knows: bfloat16 as float32."""
    return (rows.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else rows


class ArraysFile:
    """A safetensors file, read part by part. Raises CheckpointError where it breaks the rules of its format."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files, self._path = files, path
        self.arrays = read_header(files, path)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read some rows of an array, or all of an array without dimensions; 16-bit floats of torch are bit patterns."""
        stored = self.arrays[name]
        dtype = DTYPES[stored.type]
        if not stored.shape:
            return np.frombuffer(self._bytes(stored.start_byte, dtype.itemsize), dtype).reshape(())
        start, stop, _ = slice(start, stop).indices(stored.shape[0])
        shape = (max(0, stop - start), *stored.shape[1:])
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        data = self._bytes(stored.start_byte + start * row_bytes, shape[0] * row_bytes)
        return np.frombuffer(data, dtype).reshape(shape)

    def _bytes(self, start_byte: int, size_bytes: int) -> bytes:
        with os_errors("reading", self._path):
            data = self._files.read_part(self._path, start_byte, size_bytes)
        if len(data) != size_bytes:
            raise CheckpointError(
                f"{self._path} must have {start_byte + size_bytes} bytes, got {start_byte + len(data)}"
            )
        return data


def read_header(files: Files, path: Path) -> dict[str, StoredArray]:
    """Read which arrays a file holds, in the order of their bytes. Raises CheckpointError unless they cover the file exactly."""
    with os_errors("reading", path):
        size_bytes = files.size_bytes(path)
        head = files.read_part(path, 0, 8)
        if len(head) < 8:
            raise CheckpointError(f"{path} must begin with the length of its header in 8 bytes, got {len(head)}")
        length, most_bytes = struct.unpack("<Q", head)[0], min(HEADER_BYTES, size_bytes - 8)
        if length > most_bytes:
            raise CheckpointError(f"{path}: the header must have {most_bytes} bytes or fewer, got {length}")
        text = files.read_part(path, 8, length)
    header = parse_limited_json(text, path)
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object")
    header.pop("__metadata__", None)
    arrays = {name: _stored(path, name[:80], value, 8 + length) for name, value in header.items()}
    arrays = dict(sorted(arrays.items(), key=lambda item: (item[1].start_byte, item[1].size_bytes)))
    end = 8 + length
    for name, stored in arrays.items():
        if stored.start_byte != end:
            raise CheckpointError(f"{path}: array {name[:80]!r} must begin at byte {end}, got {stored.start_byte}")
        end += stored.size_bytes
    if end != size_bytes:
        raise CheckpointError(f"{path}: the last array must end with the file, at byte {size_bytes}, got {end}")
    return arrays


def _stored(path: Path, name: str, value: Any, first_byte: int) -> StoredArray:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{path}: array {name!r} must have dtype, shape and data_offsets")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not (isinstance(kind, str) and kind in DTYPES and _counts(shape) and _counts(offsets) and len(offsets) == 2):
        raise CheckpointError(f"{path}: array {name!r} must be of a known type and have whole numbers for its shape")
    size_bytes = DTYPES[kind].itemsize * math.prod(shape)
    if offsets[1] - offsets[0] != size_bytes:
        raise CheckpointError(
            f"{path}: array {name!r} must have the {size_bytes} bytes of its shape, got {offsets[1] - offsets[0]}"
        )
    return StoredArray(kind, tuple(shape), first_byte + offsets[0], size_bytes)


def _counts(values: Any) -> bool:
    """Return whether these can be sizes: whole numbers, and few enough to multiply quickly."""
    return (
        isinstance(values, list)
        and len(values) <= MAX_DIMENSIONS
        and all(type(value) is int and 0 <= value < 1 << 62 for value in values)
    )
