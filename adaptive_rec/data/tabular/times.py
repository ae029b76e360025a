"""A column of times as microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.values import numbers

if TYPE_CHECKING:
    import pyarrow as pa

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Of each unit that numbers may have."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
"""The last day that is a date; a later time is in another unit."""


def times(array: pa.Array, unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """Return when each row was, and the rows without a time: of a column of numbers since 1970 in a unit, of ISO texts, or of
    Arrow's times. A text without a zone is UTC. None for a type that holds no times."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        ticks = array.cast(pa.timestamp("us", getattr(array.type, "tz", None)), safe=False).cast(pa.int64())
        far_B = _is_far(array)  # the cast would wrap
        return np.where(far_B, 0, _whole(ticks)), array.is_null().to_numpy(zero_copy_only=False) | far_B
    found = numbers(array, truths=False)
    if found is None or pa.types.is_boolean(array.type):
        return None
    bad_B = found.bad_B | ~np.isfinite(found.values_B)
    ticks_B = np.where(bad_B, 0.0, found.values_B) * MICROSECONDS[unit]
    far_B = np.abs(ticks_B) > END
    time_B = np.rint(np.where(far_B, 0.0, ticks_B)).astype(np.int64)
    if found.bad_B.any():
        rows = np.flatnonzero(found.bad_B)
        time_B[rows], bad_B[rows] = _iso_times(array.take(pa.array(rows)))
    return time_B, bad_B | far_B


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
        found = datetime.fromisoformat(str(text).strip())
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        return (found - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def time_text(time: int) -> str:
    """Return a time as people read it: 2014-10-21 05:00:00."""
    return str((EPOCH + timedelta(microseconds=time)).replace(tzinfo=None))


def _whole(ticks: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(ticks, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
