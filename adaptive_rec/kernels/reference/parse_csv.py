"""The plain twin of the parser of comma-separated rows. Slow, and meant to be read."""

from __future__ import annotations

import datetime
import re

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels import parse_csv as kernels

RULES = {
    kernels.LABEL: (kernels.BAD_LABEL, rb"[01]"),
    kernels.HOUR: (kernels.BAD_HOUR, rb"[0-9]{8}"),
    kernels.HEX: (kernels.BAD_HEX, rb"[0-9a-fA-F]{0,8}"),
    kernels.INTEGER: (kernels.BAD_INTEGER, rb"(-?[0-9]{1,18})?"),
}


def parse_rows(
    data: NDArray[np.uint8],
    start: int,
    kinds_K: NDArray[np.int64],
    labels_B: NDArray[np.float32],
    hours_B: NDArray[np.int64],
    keys_BF: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Parse rows from byte `start` until the outputs are full, the data ends, or a row is malformed."""
    text, position, row = data.tobytes(), start, 0
    while position < len(text) and row < len(labels_B):
        line = text[position : text.index(b"\n", position)]
        fields = line.removesuffix(b"\r").split(b",")
        if len(fields) != len(kinds_K):
            return row, position, kernels.COLUMNS, 0
        keys = []
        for column, (field, kind) in enumerate(zip(fields, kinds_K.tolist(), strict=True)):
            if kind == kernels.SKIP:
                continue
            fault, rule = RULES[kind]
            if not re.fullmatch(rule, field) or (kind == kernels.HOUR and not is_hour(field.decode())):
                return row, position, fault, column
            if kind == kernels.LABEL:
                labels_B[row] = int(field)
            elif kind == kernels.HOUR:
                hours_B[row] = int(field)
            elif kind == kernels.HEX:
                keys.append(int(field, 16) + 1 if field else 0)
            else:
                keys.append(kernels.FIRST_INTEGER_KEY + int(field) if field else 0)
        keys_BF[row] = keys
        position += len(line) + 1
        row += 1
    return row, position, kernels.FINE, 0


def is_hour(text: str) -> bool:
    """Whether YYMMDDHH is an hour of the years 2000 to 2099."""
    try:
        datetime.datetime.strptime("20" + text, "%Y%m%d%H")
    except ValueError:
        return False
    return True
