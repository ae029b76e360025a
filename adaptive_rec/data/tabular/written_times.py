"""Times that are written in texts as a pattern says, such as 31.12.2026 23:59 as %d.%m.%Y %H:%M (Python's strptime)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORDERS = ("%d{0}%m{0}%Y", "%m{0}%d{0}%Y", "%Y{0}%m{0}%d", "%d{0}%m{0}%y", "%m{0}%d{0}%y")
DAYS = (
    *(order.format(between) for between in "-/." for order in ORDERS),
    "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%m %d, %Y",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
PATTERNS = (*map("".join, product(DAYS, TIMES)), "%a %b %d %H:%M:%S %z %Y", "%d/%b/%Y:%H:%M:%S %z")
"""The patterns that texts are tried for, besides ISO times."""
TRIED_VALUES = 2000


def microseconds_of(when: datetime) -> int:
    """Return a time in microseconds since 1970; one without a zone is UTC."""
    return ((when.replace(tzinfo=UTC) if when.tzinfo is None else when) - EPOCH) // timedelta(microseconds=1)


def is_pattern(unit: str) -> bool:
    return "%" in unit


def is_whole_date(pattern: str) -> bool:
    """Whether a pattern has year and month, and every directive of it can be read."""
    when = datetime(2014, 10, 1, tzinfo=UTC)
    try:
        return datetime.strptime(when.strftime(pattern), pattern).date() == when.date()
    except ValueError:
        return False


def pattern_times(array: pa.Array, pattern: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the times of texts in microseconds since 1970, by default of UTC, and which are not written so."""
    import pyarrow as pa

    coded = array.cast(pa.string()).dictionary_encode()
    found = [_time(text, pattern) for text in coded.dictionary.to_pylist()]
    time_V = np.array([*(time or 0 for time in found), 0], dtype=np.int64)
    bad_V = np.array([*(time is None for time in found), True])
    at_B = coded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return time_V[at_B], bad_V[at_B]


def patterns_of(texts: pa.Array) -> list[str]:
    """Return the patterns in which all texts are times: two where no text tells day and month apart."""
    values = [str(text) for text in texts.unique().to_pylist() if text is not None]
    some = values[:: max(1, len(values) // TRIED_VALUES)]
    found = [pattern for pattern in PATTERNS if some and _all(some, pattern)]
    return found if len(found) < 2 else [pattern for pattern in found if _all(values, pattern)]


def _all(texts: Iterable[str], pattern: str) -> bool:
    return all(_time(text, pattern) is not None for text in texts)


def _time(text: Any, pattern: str) -> int | None:
    try:
        return microseconds_of(datetime.strptime(str(text).strip(), pattern))
    except ValueError:
        return None
