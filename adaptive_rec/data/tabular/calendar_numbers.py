"""Dates that are written as whole numbers: 20141021 is yyyymmdd, 14102105 is yymmddhh."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from adaptive_rec.data.tabular.written_times import is_pattern, is_whole_date

UNITS = (
    "", "s", "ms", "us", "ns", "yyyymm", "yyyymmdd", "yyyymmddhh", "yyyymmddhhmm", "yyyymmddhhmmss",
    "yymmdd", "yymmddhh", "yymmddhhmm", "yymmddhhmmss",
)  # fmt: skip


def _known(unit: str) -> str:
    if unit not in UNITS and not (is_pattern(unit) and is_whole_date(unit)):
        raise ValueError(f"must be one of {', '.join(UNITS[1:])}, or a pattern of a date, such as %d.%m.%Y %H:%M, got {unit!r}")
    return unit


Unit = Annotated[str, AfterValidator(_known)]
"""What the values of a column of times are: units since 1970, dates in numbers, or texts in a pattern, which are in UTC."""
PARTS_OF_DAY = ((24, 3600), (60, 60), (60, 1))
"""Hours, minutes and seconds: below which number they are, and how many seconds one has."""
FOUND = ("yyyymmdd", "yymmddhh", "yyyymmddhhmmss", "yyyymmddhhmm", "yyyymmddhh", "yyyymm", "yymmdd")
"""The formats that numbers are taken for unless their unit is given. Unix times may look like yymmddhhmm."""
FIRST_YEAR, LAST_YEAR, LAST_SHORT_YEAR = 1970, 2100, 2050


def is_calendar(unit: str) -> bool:
    return unit.startswith("yy")


def calendar_times(numbers_B: NDArray[np.int64], unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return dates in microseconds since 1970, and which numbers are no dates in this format."""
    short = not unit.startswith("yyyy")
    fields, rest_B = len(unit) // 2 - (1 if short else 2), numbers_B
    parts: list[NDArray[np.int64]] = []
    for _ in range(fields):
        rest_B, part_B = np.divmod(rest_B, 100)
        parts.append(part_B)
    parts.reverse()
    month_B, day_B = parts[0], parts[1] if fields > 1 else np.ones_like(rest_B)
    bad_B = (rest_B < (0 if short else 1)) | (rest_B > (99 if short else 9999))
    bad_B |= (month_B < 1) | (month_B > 12) | (day_B < 1)
    year_B = np.where(bad_B, 1970, rest_B + 2000 * short)
    months_B = ((year_B - 1970) * 12 + np.where(bad_B, 1, month_B) - 1).astype("datetime64[M]")
    dates_B = months_B.astype("datetime64[D]") + (np.where(bad_B, 1, day_B) - 1)
    bad_B |= dates_B.astype("datetime64[M]") != months_B  # such as 31 April
    times_B = dates_B.astype("datetime64[us]").astype(np.int64)
    for part_B, (below, seconds) in zip(parts[2:], PARTS_OF_DAY, strict=False):
        bad_B |= part_B >= below
        times_B = times_B + part_B * (seconds * 1_000_000)
    return np.where(bad_B, 0, times_B), bad_B


def calendar_unit(numbers_B: NDArray[np.int64]) -> str:
    """Return the format in which all numbers are dates that a log may have; nothing where there is none."""
    if not len(numbers_B):
        return ""
    low, high = int(numbers_B.min()), int(numbers_B.max())
    for unit in FOUND:
        short = not unit.startswith("yyyy")
        scale = 100 ** ((len(unit) - (2 if short else 4)) // 2)
        years = (1, LAST_SHORT_YEAR - 2000) if short else (FIRST_YEAR, LAST_YEAR)
        if years[0] * scale <= low and high < (years[1] + 1) * scale and not calendar_times(numbers_B, unit)[1].any():
            return unit
    return ""
