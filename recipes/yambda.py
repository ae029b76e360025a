"""Yambda (Ploshkin et al., arXiv 2505.22238), the log of MLPerf Training's `dlrm_v4`: listens of a music service, as sequences.

Its flat files have a row for each event, of columns `uid`, `item_id`, `timestamp` (seconds since the log begins, in steps of 5),
`is_organic`, `played_ratio_pct` and `track_length_seconds`; `multi_event.parquet` also `event_type`. What is read here follows
its documentation; the files themselves were not at hand. A track counts as listened to from 50 % of its length on.

Each listen is a sample in strict order of time: what its user listened to before, the track, and whether it was listened to. All
events are in memory, 33 bytes each and twice that while they are sorted: the 50 M and 500 M of the smaller sets fit a server, the
4.8 G of the whole one do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError

LISTENED_PCT = 50
COLUMNS = ("uid", "item_id", "timestamp", "played_ratio_pct")
MOST = 2**32 - 2
"""The largest number that a column may have: 32 bits, and a track is its `item_id` + 1."""


@dataclass(frozen=True)
class Listens:
    """A batch of B listens, each with the T before it of the same user; where there are fewer, zeros come first."""

    user_B: NDArray[np.int64]
    time_B: NDArray[np.int64]
    """Seconds."""
    history_BT: NDArray[np.int64]
    """Tracks, as numbers from 1 on: the log's `item_id` + 1."""
    listened_BT: NDArray[np.int64]
    """2 where the track was listened to, 1 where it was skipped."""
    track_B: NDArray[np.int64]
    label_B: NDArray[np.int64]
    """1 where the track was listened to."""


class ListenLog:
    """All listens (E) of a file, by user and time."""

    def __init__(self, path: Path | str) -> None:
        """Raises DataError where the file cannot be read, a column is missing or has other values, or no row is a listen."""
        user_E, track_E, time_E, ratio_E = _read(Path(path))
        by_user = np.lexsort((time_E, user_E))  # stable: events of one moment stay in the file's order
        self._user_E, self._track_E, self._time_E = user_E[by_user], track_E[by_user], time_E[by_user]
        self._listened_E = ratio_E[by_user] >= LISTENED_PCT
        first_E = np.r_[True, self._user_E[1:] != self._user_E[:-1]]
        self._begin_E = np.maximum.accumulate(np.where(first_E, np.arange(len(user_E)), 0))
        """Where the events of a row's user begin."""
        self._by_time = np.argsort(self._time_E, kind="stable")
        self.seconds = self._time_E[self._by_time]
        """Times (E), in order."""
        self.users, self.tracks = int(user_E.max()) + 1, int(track_E.max()) + 1

    def __len__(self) -> int:
        return len(self._by_time)

    def windows(self, seconds: int) -> list[tuple[int, int]]:
        """Return where each stretch of so many seconds begins and ends, for `batches`; one without listens is left out."""
        number_E = self.seconds // seconds
        cuts = [0, *(np.flatnonzero(np.diff(number_E)) + 1), len(self)]
        return [(int(one), int(other)) for one, other in zip(cuts[:-1], cuts[1:], strict=True)]

    def batches(self, size: int, length: int, begin: int = 0, end: int | None = None) -> Iterator[Listens]:
        """Yield the listens from number `begin` to `end` in order of time, in batches of `size`; the last may be smaller."""
        end = len(self) if end is None else end
        for first in range(begin, end, size):
            row_B = self._by_time[first : min(first + size, end)]
            earlier_BT = row_B[:, None] - np.arange(length, 0, -1)
            there_BT = earlier_BT >= self._begin_E[row_B][:, None]
            earlier_BT = np.where(there_BT, earlier_BT, 0)
            yield Listens(
                user_B=self._user_E[row_B].astype(np.int64),
                time_B=self._time_E[row_B].astype(np.int64),
                history_BT=np.where(there_BT, self._track_E[earlier_BT].astype(np.int64) + 1, 0),
                listened_BT=np.where(there_BT, 1 + self._listened_E[earlier_BT], 0),
                track_B=self._track_E[row_B].astype(np.int64) + 1,
                label_B=self._listened_E[row_B].astype(np.int64),
            )


def _read(path: Path) -> list[NDArray[np.uint32]]:
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(path).names
        if missing := [name for name in COLUMNS if name not in names]:
            raise DataError(f"a log of listens must have the columns {', '.join(COLUMNS)}, {path} lacks {', '.join(missing)}")
        table = pyarrow.parquet.read_table(path, columns=[*COLUMNS, *({"event_type"} & {*names})])
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"a log of listens must be a Parquet file, {path} cannot be read: {error}") from None
    if "event_type" in names:
        table = table.filter(pc.equal(table["event_type"].cast(pyarrow.string()), "listen"))
    if not len(table):
        raise DataError(f"a log of listens must have at least one listen, {path} has none")
    for name in COLUMNS:
        if table[name].null_count:
            raise DataError(f"{name} of a listen must have a value, {path} has {table[name].null_count} without one")
    return [_whole_numbers(name, table[name].to_numpy(), path) for name in COLUMNS]


def _whole_numbers(name: str, value_E: NDArray[Any], path: Path) -> NDArray[np.uint32]:
    """Return a column as whole numbers of 32 bits, which it may have in another type. Raises DataError where it has others."""
    rule = f"{name} of a listen must be a whole number from 0 to {MOST}"
    if value_E.dtype.kind not in "iuf":
        raise DataError(f"{rule}, {path} has the type {value_E.dtype}")
    fits_E = (value_E >= 0) & (value_E <= MOST)
    if value_E.dtype.kind == "f":
        fits_E &= value_E == np.floor(value_E)
    if not fits_E.all():
        raise DataError(f"{rule}, {path} has {value_E[fits_E.argmin()]}")
    return value_E.astype(np.uint32)
