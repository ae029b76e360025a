"""``.npy`` files that are written part by part, by plain writes: on a full disk they raise, where a memory map would kill."""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError


class NpyWriter:
    """Writes an array of rows whose number is known only at the end. Use as a context; until its end the file is no array."""

    def __init__(self, path: Path, dtype: str, columns: int | None) -> None:
        """`columns` of a row; None makes the array one-dimensional."""
        self._dtype, self._columns = np.dtype(dtype), columns
        self.rows = 0
        self._file = path.open("wb")
        self._file.write(npy_header(self._dtype, self._shape()))

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows of the array's dtype and width."""
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape()[1:]:
            raise DataError(
                f"rows of {self._file.name} must be {self._dtype} of {self._columns} columns, got {rows.dtype}, {rows.shape}"
            )
        self.rows += len(rows)
        self._file.write(np.ascontiguousarray(rows).data)

    def _shape(self) -> tuple[int, ...]:
        return (self.rows,) if self._columns is None else (self.rows, self._columns)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.seek(0)
            self._file.write(npy_header(self._dtype, self._shape()))
        self._file.close()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The first bytes of a ``.npy`` file: as many whatever the number of rows, for which NumPy leaves room."""
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()
