"""A column of times as microseconds since 1970, UTC."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.calendar_numbers import calendar_times, calendar_unit, is_calendar
from adaptive_rec.data.tabular.values import numbers
from adaptive_rec.data.tabular.written_times import EPOCH, is_pattern, microseconds_of, pattern_times, patterns_of
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
SCALE = {"": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
"""Microseconds of each unit that numbers may have."""
UNITS = {"": "seconds", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
LAST_SECOND = 4_102_444_800
"""The year 2100: a later time is in another unit, unless the schema says that it is in seconds."""
DAY = 86_400_000_000
THURSDAY = 3 * DAY
"""The time from Monday to the first day of 1970."""
END = microseconds_of(datetime(9999, 12, 31))
"""The last day that is a date; a later time is in another unit."""


def times(array: pa.Array, unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """Return when each row was, and the rows without a time: of a column of numbers in a unit of the schema, of texts
    in ISO or in the unit's pattern, or of Arrow's times. A text without a zone is UTC. None for a type that holds no times."""
    import pyarrow as pa

    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        ticks = array.cast(pa.timestamp("us", getattr(array.type, "tz", None)), safe=False).cast(pa.int64())
        far_B = _is_far(array)  # the cast would wrap
        return np.where(far_B, 0, _whole(ticks)), array.is_null().to_numpy(zero_copy_only=False) | far_B
    found = numbers(array, truths=False)
    if found is None or pa.types.is_boolean(array.type):
        return None
    if is_pattern(unit):
        return pattern_times(array, unit)
    bad_B = found.bad_B | ~np.isfinite(found.values_B)
    values_B = np.where(bad_B, 0.0, found.values_B)
    if is_calendar(unit):
        whole_B = np.abs(values_B) < 2**53
        time_B, far_B = calendar_times(np.where(whole_B, values_B, 0.0).astype(np.int64), unit)
        far_B |= ~whole_B | (values_B != np.floor(values_B))
    else:
        far_B = np.abs(values_B) * SCALE[unit] > (END if unit else LAST_SECOND * 1e6)
        time_B = np.rint(np.where(far_B, 0.0, values_B * SCALE[unit])).astype(np.int64)
        if unit == "ns" and (exact_B := _exact(array)) is not None:
            time_B = np.where(far_B, 0, exact_B // 1000)
    if found.bad_B.any():
        rows = np.flatnonzero(found.bad_B)
        time_B[rows], bad_B[rows] = _iso_times(array.take(pa.array(rows)))
        far_B[rows] = False
    return time_B, bad_B | far_B


def check_unit(array: pa.Array, where: str, column: str) -> None:
    """Raise DataError, which begins with `where`, for numbers of no given unit that all look like something else than
    seconds since 1970: dates such as 20141021, or a smaller unit."""
    import pyarrow as pa

    if pa.types.is_temporal(array.type) or (found := numbers(array, truths=False)) is None:
        return
    number_B = ~found.bad_B & np.isfinite(found.values_B)
    if unit := unit_of(found.values_B[number_B]):
        got = array[int(np.flatnonzero(number_B)[0])].as_py()
        raise DataError(
            f"{where}: times must be seconds since 1970 unless their unit is given, got {got}, which looks like {unit}; "
            f'write {time_line(column, unit)} into the schema (unit = "s" takes it for seconds)'
        )


def unit_of(values_N: NDArray[np.float64]) -> str:
    """Return the unit that all numbers look like, where they are no seconds: a format of dates, or a smaller unit of
    times before the year 2100; nothing where they look like seconds, or like no time."""
    if not len(values_N) or values_N.min() < 0 or values_N.max() >= 2**63:
        return ""
    if (values_N == np.floor(values_N)).all() and (unit := calendar_unit(values_N.astype(np.int64))):
        return unit
    smaller = (unit for unit in ("ms", "us", "ns") if values_N.max() * SCALE[unit] <= LAST_SECOND * 1e6)
    return next(smaller, "") if values_N.min() > LAST_SECOND else ""


def unit_of_column(values: pa.Array) -> str:
    """Return the unit of a column of times by its first values, empty for seconds, ISO texts and Arrow's times. Raises DataError,
    with the reason, for values that are no times, or whose day and month cannot be told apart."""
    found = numbers(values, truths=False)
    is_number = found is not None and not found.bad_B.any()
    unit = unit_of(found.values_B[np.isfinite(found.values_B)]) if found is not None and is_number else ""
    read = times(values, unit)
    if read is None:
        raise DataError(f"values of type {values.type} are no times")
    bad_B = read[1] & values.is_valid().to_numpy(zero_copy_only=False)
    if not bad_B.any():
        return unit
    patterns = [] if is_number else patterns_of(values)
    if len(patterns) == 1:
        return patterns[0]
    value = ascii(values[int(np.flatnonzero(bad_B)[0])].as_py())[:60]
    if patterns:
        raise DataError(f"{value} may be {' or '.join(patterns)}; a schema says which, as time.unit (--schema)")
    raise DataError(
        f"{value} is neither a number since 1970 nor an ISO time, such as 2014-10-21 05:00:00; "
        "a schema can say how its times are written, such as time.unit = '%d.%m.%Y %H:%M' (--schema)"
    )


def time_line(column: str, unit: str) -> str:
    """Return the line of a schema that names a column of times."""
    return f'time = {{ column = {json.dumps(column, ensure_ascii=False)}, unit = "{unit}" }}'


def rule_of(unit: str, key: str = "time.unit") -> str:
    """Return what a time in a unit of the schema must be; `key` names the unit's place there."""
    if is_pattern(unit):
        return f"must be a time written {unit} ({key} in the schema)"
    if is_calendar(unit):
        return f"must be a date written {unit} ({key} in the schema), or an ISO time"
    before = "before the year 10000" if unit else "before the year 2100 unless the unit is given"
    return f"must be {UNITS[unit]} since 1970, {before} ({key} in the schema), or an ISO time"


def sine_or_cosine(time_B: NDArray[np.int64], transform: str) -> NDArray[np.float64]:
    """Return the sine or the cosine of the time of day, or of the week from Monday on, as an angle."""
    of, function = transform.split("_")
    since_B = time_B % DAY if of == "hour" else (time_B + THURSDAY) % (7 * DAY)
    angle_B = since_B * (2 * np.pi / (DAY if of == "hour" else 7 * DAY))
    return np.sin(angle_B) if function == "sine" else np.cos(angle_B)


def _exact(array: pa.Array) -> NDArray[np.int64] | None:
    """Return whole numbers of 64 bits as they are; None where some are none."""
    import pyarrow as pa

    try:
        return _whole(array.cast(pa.int64()))
    except pa.ArrowException:
        return None


def _is_far(array: pa.Array) -> NDArray[np.bool_]:
    """Return which of Arrow's times are further from 1970 than END."""
    import pyarrow as pa

    if pa.types.is_date32(array.type):
        ticks_B, ticks_a_second = _whole(array.cast(pa.int32())), 1 / 86_400
    else:
        unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
        ticks_B, ticks_a_second = _whole(array.cast(pa.int64())), {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    return np.abs(ticks_B.astype(np.float64)) / ticks_a_second > END / 1e6


def _iso_times(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the times of ISO texts, and which are none. Arrow reads a column that is written alike, with or without zones."""
    import pyarrow as pa

    for zone in (None, "UTC"):
        try:
            return _whole(array.cast(pa.timestamp("us", zone)).cast(pa.int64())), np.zeros(len(array), dtype=bool)
        except pa.ArrowInvalid:
            pass
    found = [iso_time(text) for text in array.to_pylist()]
    return np.array([time or 0 for time in found], dtype=np.int64), np.array([time is None for time in found])


def iso_time(text: Any) -> int | None:
    """Return the time of an ISO text, or None."""
    try:
        return microseconds_of(datetime.fromisoformat(str(text).strip()))
    except (ValueError, OverflowError):
        return None


def time_text(time: int) -> str:
    """Return a time as people read it: 2014-10-21 05:00:00."""
    return str((EPOCH + timedelta(microseconds=time)).replace(tzinfo=None))


def _whole(ticks: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
