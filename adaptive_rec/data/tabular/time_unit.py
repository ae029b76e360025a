"""The unit of a column of times that nobody has named, by its first values."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.schema import TimeColumn
from adaptive_rec.data.tabular.times import times
from adaptive_rec.data.tabular.values import numbers
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

UNITS = {"s": 1e11, "ms": 1e14, "us": 1e17, "ns": np.inf}
"""The units of numbers since 1970, and the number from which on the next one is meant: seconds of the year 5138."""
CALENDAR = {"yyyymmddhh": (10**6, 10**4, 100, 1), "yyyymmdd": (10**4, 100, 1, 0), "yymmddhh": (10**6, 10**4, 100, 1)}
"""Dates as whole numbers: what stands before the last digits of year, month, day and hour; 0: there are none."""
FIRST_YEAR, LAST_YEAR = 1900, 2100


def time_unit(values: pa.Array) -> str:
    """Return the unit of times: of whole numbers that are dates such as 20141021 their format, of other numbers by their size,
    seconds to nanoseconds; "s" of texts and of Arrow's times, which have none. Raises DataError, with the reason, for values
    that are no times, or whose unit a schema cannot have."""
    found = numbers(values, truths=False)
    is_number = found is not None and not found.bad_B.any() and len(values) > 0
    unit = _unit_of_numbers(found.values_B) if found is not None and is_number else "s"
    if unit not in get_args(TimeColumn.model_fields["unit"].annotation):
        raise DataError(f"numbers in {unit} cannot be read as times; write them as ISO times, such as 2014-10-21 05:00:00")
    read = times(values, unit)
    if read is None:
        raise DataError(f"values of type {values.type} are no times")
    bad_B = read[1] & values.is_valid().to_numpy(zero_copy_only=False)
    if bad_B.any():
        value = ascii(values[int(np.flatnonzero(bad_B)[0])].as_py())[:60]
        raise DataError(f"{value} is neither a number since 1970 nor an ISO time, such as 2014-10-21 05:00:00")
    return unit


def _unit_of_numbers(values_B: NDArray[np.float64]) -> str:
    values_B = values_B[np.isfinite(values_B)]
    for name, places in CALENDAR.items():
        if len(values_B) and _is_calendar(values_B, places, len(name)):
            return name
    size = float(np.median(np.abs(values_B))) if len(values_B) else 0.0
    return next(unit for unit, end in UNITS.items() if size < end)


def _is_calendar(values_B: NDArray[np.float64], places: tuple[int, ...], digits: int) -> bool:
    """Return whether all numbers are dates, or hours, in a format."""
    if (values_B != np.floor(values_B)).any() or values_B.min() < 10 ** (digits - 2) or values_B.max() >= 10**digits:
        return False
    whole_B = values_B.astype(np.int64)
    years_B = whole_B // places[0] + (2000 if digits == 8 and places[3] else 0)
    months_B, days_B = (whole_B // place % 100 for place in places[1:3])
    hours_B = whole_B % 100 if places[3] else np.zeros_like(whole_B)
    right_B = (years_B >= FIRST_YEAR) & (years_B <= LAST_YEAR) & (months_B >= 1) & (months_B <= 12)
    return bool((right_B & (days_B >= 1) & (days_B <= 31) & (hours_B < 24)).all())
