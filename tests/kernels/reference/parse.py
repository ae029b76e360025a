"""Plain twins of the kernels in `parse.py`: same names, same arguments, no Numba."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.parse import (
    CATEGORY,
    CATEGORY_RANGE,
    COLUMNS,
    FINE,
    HEX_DIGITS,
    INT32_MAX,
    INTEGER,
    INTEGER_RANGE,
    LABEL,
)


def parse_rows(
    data: NDArray[np.uint8],
    start: int,
    labels_B: NDArray[np.float32],
    ints_BX: NDArray[np.int32],
    values_BF: NDArray[np.uint32],
) -> tuple[int, int, int, int]:
    """Parse rows from byte `start` until the outputs are full, the data ends, or a row is malformed."""
    position, row = start, 0
    text = data.tobytes()
    while position < len(text) and row < len(labels_B):
        line = text[position : text.index(b"\n", position)]
        fields = line.removesuffix(b"\r").split(b"\t")
        fault, column = check_fields(fields, ints_BX.shape[1], values_BF.shape[1])
        if fault != FINE:
            return row, position, fault, column
        categories = fields[1 + ints_BX.shape[1] :]
        labels_B[row] = int(fields[0])
        ints_BX[row] = [int(field or b"0") for field in fields[1 : 1 + ints_BX.shape[1]]]
        values_BF[row] = [int(field or b"0", 16) for field in categories]
        position += len(line) + 1
        row += 1
    return row, position, FINE, 0


def check_fields(fields: list[bytes], dense_features: int, categories: int) -> tuple[int, int]:
    """(fault, column) of a row's fields: what is wrong first, read from the left; (FINE, 0) where nothing is."""
    if len(fields) != 1 + dense_features + categories:
        return COLUMNS, 0
    if fields[0] not in (b"0", b"1"):
        return LABEL, 0
    faults = [_integer_fault(field) for field in fields[1 : 1 + dense_features]]
    faults += [_category_fault(field) for field in fields[1 + dense_features :]]
    return next(((fault, column) for column, fault in enumerate(faults, 1) if fault != FINE), (FINE, 0))


def _integer_fault(field: bytes) -> int:
    if not re.fullmatch(rb"(-?[0-9]+)?", field):
        return INTEGER
    return INTEGER_RANGE if abs(int(field or b"0")) > INT32_MAX else FINE


def _category_fault(field: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]*", field):
        return CATEGORY
    return CATEGORY_RANGE if len(field) > HEX_DIGITS else FINE


def number_values(values_N: NDArray[np.uint32], slots: NDArray[np.int32], ids_N: NDArray[np.int32]) -> int:
    """Number the distinct values in order of first occurrence; returns how many there are."""
    numbers: dict[int, int] = {}
    for n, value in enumerate(values_N.tolist()):
        ids_N[n] = numbers.setdefault(value, len(numbers))
    return len(numbers)
