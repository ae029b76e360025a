"""The joint row space, and the tier of every row: a hot row has a slot in the device tier, a cold row is in the host tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import FeatureSpec, TableReads, TableSpec
from adaptive_rec.errors import ConfigError

MAX_ROWS = 1 << 40
"""Limit for all tables together: more than any memory holds, yet its product with a row's bytes does not overflow."""

COLD = np.int32(-1)
"""The slot of a row that is not hot."""


@dataclass(frozen=True)
class Pool:
    """All tables of one dim, or a single table: one tensor in each tier. Its rows are a range of the joint row space."""

    dim: int
    first_row: int
    rows: int
    features: NDArray[np.int64]
    """Indices of the features that read this pool, in order."""

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows

    def contains(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some joint rows are in this pool."""
        return (rows >= self.first_row) & (rows < self.end_row)

    def select(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some joint rows that are in this pool, in their order."""
        return rows[self.contains(rows)]


@dataclass(frozen=True)
class RowSpace:
    """The joint row space: ``row = table_first_row[table] + id``. Tables of one dim stand together."""

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    pools: tuple[Pool, ...]
    table_first_row: NDArray[np.int64]
    table_of_feature: NDArray[np.int64]
    feature_first_row: NDArray[np.int64]
    """First row of each feature's table."""
    rows_F: NDArray[np.int64]
    """Rows of each feature's table."""
    feature_order: NDArray[np.int64]
    """All features, pool by pool and table by table."""
    read_tables: NDArray[np.int64]
    """`TableReads.tables_T5` where each feature is a run."""
    pool_of_feature: NDArray[np.int64]
    column_of_feature: NDArray[np.int64]
    """Each feature's place among those of its pool."""
    pool_first_row: NDArray[np.int64]
    mean_F: NDArray[np.bool_]
    """Whether each feature averages its bag."""

    @property
    def rows(self) -> int:
        return self.pools[-1].end_row

    def count_by_table(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count some rows by table."""
        return np.bincount(self.table_of(rows), minlength=len(self.tables))

    def table_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the table of each of some rows."""
        order = np.argsort(self.table_first_row, kind="stable")
        return order[np.searchsorted(self.table_first_row[order], rows, side="right") - 1]

    def table_range(self, table: int) -> tuple[int, int, int]:
        """Return a table's pool, and its first and end row within that pool."""
        row = int(self.table_first_row[table])
        pool = next(i for i, p in enumerate(self.pools) if p.first_row <= row < p.end_row)
        first = row - self.pools[pool].first_row
        return pool, first, first + self.tables[table].rows

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims that occur, in the order of the pools."""
        return tuple(dict.fromkeys(pool.dim for pool in self.pools))

    @property
    def vector_order(self) -> NDArray[np.int64]:
        """The place of each feature's vector among the pooled vectors of all pools, one pool after the other."""
        return np.argsort(np.concatenate([pool.features for pool in self.pools]))

    @staticmethod
    def of(
        tables: tuple[TableSpec, ...], features: tuple[FeatureSpec, ...], pool_per_table: bool = False, kinds: Sequence[int] = ()
    ) -> RowSpace:
        """Build the space of some tables, with a pool for each dim or for each table; rows have the same numbers in both. `kinds`
        of tables have pools of their own."""
        if (rows := sum(table.rows for table in tables)) > MAX_ROWS:
            raise ConfigError(f"the rows of all tables must be at most {MAX_ROWS:,}, got {rows:,}")
        pools: list[Pool] = []
        table_first_row = np.zeros(len(tables), dtype=np.int64)
        row = 0
        key_T = list(zip([table.dim for table in tables], kinds or [0] * len(tables), strict=True))
        dims = list(dict.fromkeys(dim for dim, _ in key_T))
        keys = sorted(dict.fromkeys(key_T), key=lambda key: dims.index(key[0]))  # those of one dim stand together
        of_dim = [[index for index, key in enumerate(key_T) if key == one] for one in keys]
        for group in [[index] for part in of_dim for index in part] if pool_per_table else of_dim:
            first_row = row
            for index in group:
                table_first_row[index] = row
                row += tables[index].rows
            reading = [i for i, feature in enumerate(features) if feature.table in group]
            pools.append(Pool(tables[group[0]].dim, first_row, row - first_row, np.array(reading, dtype=np.int64)))
        table_of_feature = np.array([feature.table for feature in features], dtype=np.int64)
        feature_first_row = table_first_row[table_of_feature]
        pool_of_feature = np.zeros(len(features), dtype=np.int64)
        column_of_feature = np.zeros(len(features), dtype=np.int64)
        for index, pool in enumerate(pools):
            pool_of_feature[pool.features] = index
            column_of_feature[pool.features] = np.arange(len(pool.features))
        rows_F = np.array([tables[feature.table].rows for feature in features], dtype=np.int64)
        # A table's rows stand together and pools one after the other, so first rows sort by pool, then by table.
        order = np.argsort(feature_first_row, kind="stable")
        _, first, readers = np.unique(feature_first_row[order], return_index=True, return_counts=True)
        some = order[first]
        lines = [pool_of_feature[some], feature_first_row[some], np.zeros_like(some), rows_F[some], readers]
        return RowSpace(
            tables,
            features,
            tuple(pools),
            table_first_row,
            table_of_feature,
            feature_first_row,
            rows_F,
            order,
            np.stack(lines, axis=1),
            pool_of_feature,
            column_of_feature,
            np.array([pool.first_row for pool in pools], dtype=np.int64),
            np.array([feature.pooling == "mean" for feature in features]),
        )

    def reads(self, samples: int) -> TableReads:
        """Return the reads of this many samples that have a bag for each feature."""
        features = len(self.features)
        runs_V3 = np.full((features, 3), (0, features, samples), dtype=np.int64)
        runs_V3[:, 0] = self.feature_order
        return TableReads(self.read_tables, runs_V3)

    @staticmethod
    def by_pool(tables: tuple[TableSpec, ...], kinds: Sequence[int] = ()) -> RowSpace:
        """Build a space with one feature for each pool: its bags hold rows by their numbers within the pool, of any table."""
        space = RowSpace.of(tables, (), kinds=kinds)
        names = [f"rows of dim {pool.dim}" + f", {number}" * bool(kinds) for number, pool in enumerate(space.pools)]
        pools = tuple(TableSpec(name, pool.rows, pool.dim) for name, pool in zip(names, space.pools, strict=True))
        features = tuple(FeatureSpec(pool.name, index) for index, pool in enumerate(pools))
        joint = RowSpace.of(pools, features, pool_per_table=True)
        return replace(joint, tables=tables, table_first_row=space.table_first_row)


@dataclass(frozen=True)
class Placement:
    """A version number and a read-only view of the one row -> slot array. It changes only between steps."""

    version: int
    slot_of_row: NDArray[np.int32]
    """Slot in the row's pool for each row of the joint row space, or COLD."""
    any_hot: bool = True
    """False where no row is hot: then slots need not be read."""
    moves: int = 0
    """How many times rows have moved by then, as is shown and saved: some versions begin without a move."""


@dataclass(frozen=True)
class Migration:
    """Rows that change tier between two placement versions. Row numbers are of the joint row space."""

    promote: NDArray[np.int64]
    demote: NDArray[np.int64]

    @property
    def moved_rows(self) -> int:
        return len(self.promote) + len(self.demote)
