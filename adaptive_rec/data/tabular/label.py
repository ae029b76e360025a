"""The label of a row, as --label and the schema name it: a column, or a comparison of one."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Frozen

EQUAL = re.compile(r"(?P<column>.+?)\s*==\s*(?P<value>.*\S)\s*")
THRESHOLD = re.compile(r"(?P<column>.+?)\s*(?P<sign>>=|>)\s*(?P<number>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")


class Label(Frozen):
    """The label of a row: a column of 0 and 1, or a comparison of a column's value with a constant."""

    column: str
    equals: str = ""
    at_least: float | None = None
    above: float | None = None

    @property
    def rule(self) -> str:
        if self.equals:
            return "must have a value"
        return "must be 0 or 1" if self.at_least is None and self.above is None else "must be a number"

    def of(self, values_B: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 0 or 1 for each number; a column that is not compared is returned as it is."""
        if self.at_least is not None:
            return np.where(np.isnan(values_B), np.nan, values_B >= self.at_least)
        if self.above is not None:
            return np.where(np.isnan(values_B), np.nan, values_B > self.above)
        return values_B


def parse_label(text: str) -> Label:
    """Read a column, or a comparison such as ``rating >= 4`` or ``answer == yes``."""
    if equal := EQUAL.fullmatch(text):
        value = equal["value"]
        return Label(column=equal["column"], equals=value[1:-1] if re.fullmatch(r"""(["']).+\1""", value) else value)
    found = THRESHOLD.fullmatch(text)
    try:
        number = float(found["number"]) if found else np.nan
    except ValueError:
        number = np.nan
    if found is None or not np.isfinite(number):
        return Label(column=text)
    if found["sign"] == ">=":
        return Label(column=found["column"], at_least=number)
    return Label(column=found["column"], above=number)
