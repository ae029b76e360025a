"""The plain twin of the parser of separated fields. Slow, and meant to be read."""

from __future__ import annotations

import datetime
import re

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.recipes.kernels import parse_csv as kernels

PATTERNS = {
    kernels.NUMBER: rb"[0-9]{1,18}",
    kernels.HOUR: rb"[0-9]{8}",
    kernels.HEX_KEY: rb"[0-9a-fA-F]{0,8}",
    kernels.INTEGER_KEY: rb"(-?[0-9]{1,18})?",
}


def parse_rows(
    data: NDArray[np.uint8],
    start: int,
    separator: NDArray[np.uint8],
    kinds_K: NDArray[np.int64],
    limits_K: NDArray[np.int64],
    words_KWL: NDArray[np.uint8],
    values_BK: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Parse rows from byte `start` until `values_BK` is full, the data ends, or a row is malformed."""
    text, position, row = data.tobytes(), start, 0
    while position < len(text) and row < len(values_BK):
        line = text[position : text.index(b"\n", position)]
        fields = line.removesuffix(b"\r").split(separator.tobytes())
        if len(fields) != len(kinds_K):
            return row, position, kernels.COLUMNS, 0
        for column, field in enumerate(fields):
            if kinds_K[column] == kernels.SKIP:
                continue
            words = [word.tobytes().rstrip(b"\0") for word in words_KWL[column]]
            value = number_of(field, int(kinds_K[column]), int(limits_K[column]), [word for word in words if word])
            if value is None:
                return row, position, kernels.FIELD, column
            values_BK[row, column] = value
        position += len(line) + 1
        row += 1
    return row, position, kernels.FINE, 0


def number_of(field: bytes, kind: int, limit: int, words: list[bytes]) -> int | None:
    """The number that a field becomes; None where it breaks the rule of its kind."""
    if kind == kernels.WORD:
        return words.index(field) if field in words else None
    if not re.fullmatch(PATTERNS[kind], field):
        return None
    if kind == kernels.HEX_KEY:
        return int(field, 16) + 1 if field else 0
    if kind == kernels.INTEGER_KEY:
        return kernels.FIRST_INTEGER_KEY + int(field) if field else 0
    if kind == kernels.HOUR:
        return int(field) if is_hour(field.decode()) else None
    return int(field) if int(field) <= limit else None


def is_hour(text: str) -> bool:
    """Whether YYMMDDHH is an hour of the years 2000 to 2099."""
    try:
        datetime.datetime.strptime("20" + text, "%Y%m%d%H")
    except ValueError:
        return False
    return True
