"""New rows of Criteo files for a model that was trained on one, and the ids that values have there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo import is_numbered
from adaptive_rec.data.criteo_file import CriteoLayout, LineMark, ParsedRows, RowReader, mark_rows
from adaptive_rec.data.loaded_samples import offsets_of
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.source import HeldOutRows, cut_rows, feature_specs, feature_tables, kept_rows, table_specs
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.schema_columns import DenseColumn, SparseColumnSchema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.data.unknown import Unknown
from adaptive_rec.kernels import parse


@dataclass(frozen=True)
class NumberedValues:
    """The values of a table whose ids number them, as `MemorySource` does."""

    value_U: NDArray[np.uint32]
    """In order of their numbers."""
    rows: int
    """Of the table, into which further numbers are folded."""

    @cached_property
    def _order_U(self) -> NDArray[np.int64]:
        return np.argsort(self.value_U)

    def ids(self, values_N: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the id of each value; -1 for one that the training file does not have."""
        order_U = self._order_U
        place_N = order_U[np.minimum(np.searchsorted(self.value_U, values_N, sorter=order_U), len(order_U) - 1)]
        return np.where(self.value_U[place_N] == values_N, place_N % self.rows, -1)


def numbered_values(config: Config) -> list[NumberedValues] | None:
    """Return the values of each table of a run that was trained on a Criteo file, which is read again; None where ids follow from
    the values alone."""
    layout = CriteoLayout.of(config)
    if config.data.ids in ("raw", "hash"):
        return None
    end = mark_rows(layout, parsed=False)[-1]
    if not is_numbered(config, end):
        return None
    rows = ParsedRows.empty(layout, min(end.line, end.byte // (layout.columns + 1)))
    values_RF = rows.values_BF[: RowReader(layout, LineMark(0, 0, 0)).read(rows)]
    tables_F, found = np.array(feature_tables(config)), []
    for table in range(len(config.data.table_rows)):
        values_N = np.ascontiguousarray(values_RF[:, tables_F == table]).reshape(-1)
        slots, ids_N = np.full(1 << (2 * len(values_N)).bit_length(), -1, dtype=np.int32), np.empty(len(values_N), dtype=np.int32)
        value_U = np.zeros(max(1, parse.number_values(values_N, slots, ids_N)), dtype=np.uint32)
        value_U[ids_N] = values_N
        found.append(NumberedValues(value_U, max(1, kept_rows(config, len(value_U)))))
    return found


class CriteoRows(HeldOutRows):
    """Criteo files, one after another, all of whose rows are held out: with raw keys for ids, or the ids that their values have
    in the model. A value that the training file does not have is counted, and its feature's bag is empty: it adds nothing."""

    def __init__(self, config: Config, paths: Sequence[Path], labelled: bool) -> None:
        """`labelled`: rows must have a label; without it they may have none. Raises DataError where a file cannot be read."""
        for path in paths:
            check_source(path)
        layout = replace(CriteoLayout.of(config), skip_bad_rows=False)
        self._layouts = [layout.opened(path, labelled) for path in paths]
        self._numbered, self._is_raw = numbered_values(config), config.data.ids == "raw"
        rows = cut_rows(config) if self._numbered is None else tuple(each.rows for each in self._numbered)
        self.tables, self.features = table_specs(config, rows), feature_specs(config)
        self.dense_features = config.data.dense_features
        names = [] if self._numbered is None else [feature.name for feature in self.features]
        self.unknown = {name: Unknown() for name in names}
        """Lookups of each column, and those of values without an id."""

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield all rows, file by file. Raises DataError for a malformed one."""
        for layout in self._layouts:
            reader, rows = RowReader(layout, LineMark(0, 0, 0)), ParsedRows.empty(layout, batch_size)
            while read := reader.read(rows):
                yield self._batch(rows[:read])

    def _batch(self, rows: ParsedRows) -> Batch:
        labels_B = rows.labels_B.copy()
        if self._is_raw:
            return Batch.one_hot(rows.dense_BX(), rows.values_BF.astype(np.int64), labels_B, Position())
        ids_BF = self._ids(rows.values_BF)
        known_BF = ids_BF >= 0
        if known_BF.all():
            return Batch.one_hot(rows.dense_BX(), ids_BF, labels_B, Position())
        return Batch(rows.dense_BX(), ids_BF[known_BF], offsets_of(known_BF.reshape(-1).astype(np.int64)), labels_B, Position())

    def _ids(self, values_BF: NDArray[np.uint32]) -> NDArray[np.int64]:
        if self._numbered is None:
            rows_F = np.array([self.tables[feature.table].rows for feature in self.features], dtype=np.int64)
            return values_BF.astype(np.int64) % rows_F
        ids_BF = np.empty(values_BF.shape, dtype=np.int64)
        for f, feature in enumerate(self.features):
            ids_BF[:, f] = self._numbered[feature.table].ids(values_BF[:, f])
            self.unknown[feature.name].count(len(ids_BF), int(np.count_nonzero(ids_BF[:, f] < 0)))
        return ids_BF


def criteo_columns(config: Config) -> TrainedColumns:
    """Return the columns of a Criteo file by the names that they have in errors: I1, ..., C1, ..."""
    layout, tables = CriteoLayout.of(config), table_specs(config, tuple(config.data.table_rows))
    names = [layout.column_name(number) for number in range(layout.columns)]
    dense = [DenseColumn(column=name, transform="log") for name in islice(names, 1, 1 + layout.dense_features)]
    sparse = [
        SparseColumnSchema(column=name, table=tables[table].name)
        for name, table in zip(names[1 + layout.dense_features :], feature_tables(config), strict=True)
    ]
    schema = Schema(label=names[0], dense=tuple(dense), sparse=tuple(sparse))
    return TrainedColumns(schema, (False,) * len(sparse), None)
