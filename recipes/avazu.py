"""Avazu click logs (CSV) as raw rows. The log has no dense features: four are made of the hour."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn
from adaptive_rec.data.tabular.times import MICROSECONDS
from adaptive_rec.recipes.columns import LogColumn, LogFile, LogReader, word
from adaptive_rec.recipes.kernels.parse_csv import HEX_KEY, HOUR, INTEGER_KEY, SKIP

HEX_COLUMNS = (
    "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id", "device_ip",
    "device_model",
)  # fmt: skip
INTEGER_COLUMNS = ("C1", "banner_pos", "device_type", "device_conn_type", *(f"C{i}" for i in range(14, 22)))
LOG_COLUMNS = (
    LogColumn("id", kind=SKIP),
    word("click", "0", "1"),
    LogColumn("hour", kind=HOUR),
    *(LogColumn(name, kind=HEX_KEY) for name in HEX_COLUMNS),
    *(LogColumn(name, kind=INTEGER_KEY) for name in INTEGER_COLUMNS),
)


class AvazuReader(LogReader):
    """Rows of an Avazu file: 22 sparse columns, the hour of the day among them. The dense features place the hour of the day and
    the day of the week on circles, from -1 to 1. The column `id` is left out."""

    dense_names: tuple[str, ...] = ("hour_sin", "hour_cos", "weekday_sin", "weekday_cos")
    dense_transform = "sine and cosine of the hour of the day (of 24) and of the day of the week (of 7)"

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int, labelled: bool = True) -> None:
        optional = () if labelled else ("click",)
        super().__init__(LogFile(path, LOG_COLUMNS, skip_bad_rows, has_header=True, any_order=True, optional=optional))
        keyed = [column.name for column in self._log.columns if column.kind in (HEX_KEY, INTEGER_KEY)]
        self.columns = tuple(SparseColumn(name, name) for name in ("hour", *keyed))

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; a malformed one raises DataError with its line and column, or is skipped."""
        place = {column.name: k for k, column in enumerate(self._log.columns)}
        keyed = [place[column.name] for column in self.columns[1:]]
        for rows_BK in self._log.blocks():
            hours_B = rows_BK[:, place["hour"]].copy()
            keys_FB = np.ascontiguousarray(rows_BK[:, keyed].T).view(np.uint64)
            values_F = [(hours_B % 100 + 1).astype(np.uint64), *keys_FB]
            labels_B = np.zeros(len(rows_BK), dtype=np.float32)
            if "click" in place:
                labels_B[:] = rows_BK[:, place["click"]]
            yield RawBlock(
                clock_features(hours_B), labels_B, values_F, [None] * len(values_F), times_B=times_of_hours(hours_B)
            )


def clock_features(hours_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return sine and cosine of the hour of day and of the day of week, for hours as YYMMDDHH. Rows of a log share few hours."""
    hours_U, inverse_B = np.unique(hours_B, return_inverse=True)
    features_UX = np.empty((len(hours_U), 4), dtype=np.float32)
    for u, number in enumerate(hours_U.tolist()):
        year, month, day, hour = 2000 + number // 1000000, number // 10000 % 100, number // 100 % 100, number % 100
        weekday = datetime.date(year, month, day).weekday()
        angles = (2 * math.pi * hour / 24, 2 * math.pi * weekday / 7)
        features_UX[u] = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    return features_UX[inverse_B]


def times_of_hours(hours_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the beginnings of hours as YYMMDDHH, in microseconds since 1970."""
    hours_U, inverse_B = np.unique(hours_B, return_inverse=True)
    parts_U4 = [(2000 + n // 1000000, n // 10000 % 100, n // 100 % 100, n % 100) for n in hours_U.tolist()]
    seconds_U = [int(datetime.datetime(*parts, tzinfo=datetime.UTC).timestamp()) for parts in parts_U4]
    return (np.array(seconds_U, dtype=np.int64) * MICROSECONDS["s"])[inverse_B]
