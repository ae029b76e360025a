"""Tables, features and batches.

Suffixes that name shapes everywhere: B samples of a batch, S samples of a micro-batch, F sparse features,
X dense features, N lookups of a batch, U distinct rows of a batch, D embedding dim, R rows of a pool, H slots of a pool,
K columns of optimizer state, L pooled vectors or lookups of a part, T tables or the features of a pool, P parts of the work,
V runs of lookups. A digit is a fixed length; ``U1`` is one more than U.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError

Pooling = Literal["sum", "mean"]


@dataclass(frozen=True)
class TableSpec:
    """An embedding table: `rows` vectors of `dim` components."""

    name: str
    rows: int
    dim: int


@dataclass(frozen=True)
class FeatureSpec:
    """A sparse input: a bag of ids of one table for each sample. Several features may share a table."""

    name: str
    table: int
    """Index into the list of tables."""
    pooling: Pooling = "sum"


@dataclass(frozen=True)
class SequenceSpec:
    """The features and dense columns of a sample that are steps of its history or describe the candidate.

    Each step of each column is a feature of its own; all features of a column read one table. A shorter history has empty bags
    in its first steps.
    """

    features: tuple[tuple[int, ...], ...]
    """For each column of the sequence: the features of its `steps` steps, oldest first, then the candidate's feature."""
    dense: tuple[tuple[int, ...], ...]
    """For each dense column of the sequence: the columns of its `steps` steps, oldest first; the candidate's value is 0."""
    length: int
    """The dense column that holds the number of steps in a sample's history."""

    @property
    def steps(self) -> int:
        return len(self.features[0]) - 1

    def shared_features(self, count: int) -> tuple[int, ...]:
        """Return the features, of `count` in all, that belong to the sample as a whole."""
        return tuple(f for f in range(count) if not any(f in column for column in self.features))

    def shared_dense(self, count: int) -> tuple[int, ...]:
        """Return the dense columns, of `count` in all, that belong to the sample as a whole."""
        taken = {self.length, *(column for columns in self.dense for column in columns)}
        return tuple(x for x in range(count) if x not in taken)


SLICE = 1 << 40
"""The epoch of the validation slice in a reader's position, where a run trains on it behind all passes."""


@dataclass(frozen=True)
class Position:
    """A reader's place in the stream: all it needs to produce the batches that follow."""

    epoch: int = 0
    seed: int = 0
    offset: int = 0
    """Samples of this epoch that were read."""

    @property
    def on_slice(self) -> bool:
        """Whether the reader stands in the validation slice, or behind it."""
        return self.epoch >= SLICE

    @property
    def order(self) -> tuple[int, int]:
        """A key by which the positions of one stream are sorted."""
        return self.epoch, self.offset


@dataclass(frozen=True)
class TableReads:
    """The bags of a batch that read each table. T tables, pool by pool and in the order of their rows; V runs of bags."""

    tables_T5: NDArray[np.int64]
    """For each table that is read: its pool, its first row, that row's id, its number of rows, and its number of runs."""
    runs_V3: NDArray[np.int64]
    """For each run, table by table: the first bag, the distance between bags, and the number of bags."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch in sample-major order: the lookups of one sample stand together, features in order.

    The bag of sample ``b`` and feature ``f`` is ``ids_N[offsets[b * F + f] : offsets[b * F + f + 1]]``.
    """

    dense_BX: NDArray[np.float32]
    ids_N: NDArray[np.int64]
    """Ids within the feature's table."""
    offsets: NDArray[np.int64]
    """Bag boundaries, ``B * F + 1`` of them."""
    labels_B: NDArray[np.float32]
    position: Position = field(default_factory=Position)
    """The reader's position after this batch."""
    malformed_rows: int = 0
    """Input rows skipped while this batch was read."""
    skipped_samples: int = 0
    """Samples that a policy left out of the stream before this batch. A batch without samples is not trained; it only carries
    these counts at the end of the stream."""
    whole_samples: int = field(default=0, kw_only=True)
    """Samples of the whole batch, where this one is a rank's part of it; 0: it is the whole."""
    first_sample: int = field(default=0, kw_only=True)
    """Number of this part's first sample in the whole batch."""
    times_B: NDArray[np.int64] | None = field(default=None, kw_only=True)
    """When each sample was, in microseconds since 1970, UTC; None where the source has no clock."""
    weights_B: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """How much each sample counts in the loss and in figures of quality, at least 0; None: all count 1."""
    groups_B: NDArray[np.int64] | None = field(default=None, kw_only=True)
    """The number of each sample's group, such as a user or a query: its raw key, the same in every process and in whatever file.
    None where the source has no groups."""
    whole_weight: float | None = field(default=None, kw_only=True)
    """Sum of the weights of the whole batch, where this one is a rank's part of it; None: it is the whole, or has no weights."""
    reads: TableReads | None = field(default=None, kw_only=True)
    """Set where bags do not read tables feature by feature."""

    @property
    def size(self) -> int:
        return len(self.labels_B)

    @property
    def samples_of_all_ranks(self) -> int:
        """Samples of the whole batch."""
        return self.whole_samples or self.size

    @property
    def weight_of_all_ranks(self) -> float:
        """Sum of the weights of the whole batch, over which the loss is averaged; the number of samples where all weigh 1."""
        if self.weights_B is None:
            return self.samples_of_all_ranks
        return sum_of_weights(self.weights_B) if self.whole_weight is None else self.whole_weight

    @property
    def lookups(self) -> int:
        return len(self.ids_N)

    @staticmethod
    def one_hot(
        dense_BX: NDArray[np.float32],
        ids_BF: NDArray[np.int64],
        labels_B: NDArray[np.float32],
        position: Position | None = None,
        malformed_rows: int = 0,
    ) -> Batch:
        """Return a batch with exactly one id for each sample and feature."""
        ids_N = np.ascontiguousarray(ids_BF, dtype=np.int64).reshape(-1)
        offsets = one_each(len(ids_N))
        return Batch(dense_BX, ids_N, offsets, labels_B, position or Position(), malformed_rows)


BESIDE: dict[str, type[np.generic]] = {"times_B": np.int64, "weights_B": np.float32, "groups_B": np.int64}
"""The arrays (B) that samples may have beside their features, and their types; those that a source lacks are None."""


class Beside(Protocol):
    """Samples with the arrays of `BESIDE`: a batch, samples in memory, a block of rows."""

    @property
    def times_B(self) -> NDArray[np.int64] | None: ...

    @property
    def weights_B(self) -> NDArray[np.float32] | None: ...

    @property
    def groups_B(self) -> NDArray[np.int64] | None: ...


def part_beside(samples: Beside, part: slice | NDArray[np.int64] | NDArray[np.bool_]) -> dict[str, Any]:
    """Return the arrays beside the features of a part of some samples, by name."""
    arrays = {name: getattr(samples, name) for name in BESIDE}
    return {name: None if array is None else array[part] for name, array in arrays.items()}


def joined_beside(parts: Sequence[Beside]) -> dict[str, Any]:
    """Return the arrays beside the features of samples that come in parts, by name; those that a part lacks are None."""
    arrays = {name: [getattr(part, name) for part in parts] for name in BESIDE}
    return {name: None if any(each is None for each in of) else np.concatenate(of) for name, of in arrays.items()}


def take(batch: Batch, samples_S: NDArray[np.int64]) -> Batch:
    """Return some samples of a batch, in the order of `samples_S`."""
    from adaptive_rec.kernels.arrange import copy_samples

    features = (len(batch.offsets) - 1) // max(1, batch.size)
    lengths_S = np.diff(batch.offsets[::features])[samples_S] if features else np.zeros(len(samples_S), np.int64)
    ids_N = np.empty(int(lengths_S.sum()), dtype=np.int64)
    offsets = np.zeros(len(samples_S) * features + 1, dtype=np.int64)
    copy_samples(samples_S, features, batch.ids_N, batch.offsets, ids_N, offsets)
    dense_SX, labels_S, beside = batch.dense_BX[samples_S], batch.labels_B[samples_S], part_beside(batch, samples_S)
    return replace(batch, dense_BX=dense_SX, ids_N=ids_N, offsets=offsets, labels_B=labels_S, **beside)


def join_batches(parts: list[Batch]) -> Batch:
    """Join batches into one, with the position of the last one."""
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(part.lookups for part in parts)])
    offsets = [part.offsets[:-1] + first for part, first in zip(parts, before[:-1], strict=True)]
    return replace(
        parts[-1],
        **joined_beside(parts),
        dense_BX=np.concatenate([part.dense_BX for part in parts]),
        ids_N=np.concatenate([part.ids_N for part in parts]),
        offsets=np.concatenate([*offsets, before[-1:]]),
        labels_B=np.concatenate([part.labels_B for part in parts]),
        malformed_rows=sum(part.malformed_rows for part in parts),
        skipped_samples=sum(part.skipped_samples for part in parts),
    )


def sum_of_weights(weights_B: NDArray[np.float32]) -> float:
    """Return the sum of weights, in 64 bits: exact for whole ones."""
    return float(weights_B.sum(dtype=np.float64))


_ONE_EACH: dict[int, NDArray[np.int64]] = {}
_ONE_EACH_LIMIT = 8
"""Arrays that `one_each` keeps; batches of a run have one or two sizes."""


def one_each(bags: int) -> NDArray[np.int64]:
    """Return the offsets of bags with one id each, which batches share and must not change."""
    kept = _ONE_EACH.get(bags)
    if kept is None:
        kept = np.arange(bags + 1, dtype=np.int64)
        if len(_ONE_EACH) >= _ONE_EACH_LIMIT:
            _ONE_EACH.clear()
        _ONE_EACH[bags] = kept
    return kept


def is_one_each(offsets: NDArray[np.int64]) -> bool:
    """Whether these offsets are known to be of bags with one id each without reading them. Others may be, too."""
    return _ONE_EACH.get(len(offsets) - 1) is offsets


@lru_cache(maxsize=64)
def all_samples(count: int) -> NDArray[np.int64]:
    """Return the numbers 0 to `count` - 1 of a batch's samples: the same array each time, which nobody may change. A step that
    trains all samples is told by it."""
    return np.arange(count)


def trains_all(position_B: NDArray[np.int64]) -> bool:
    """Whether a step's lines are known to be those of all samples, in their order, without reading them. Others may be, too."""
    return position_B is all_samples(len(position_B))


def check_batch(batch: Batch, tables: tuple[TableSpec, ...], features: tuple[FeatureSpec, ...]) -> None:
    """Raise DataError when a batch's shapes disagree or an id lies outside its table."""
    check_shapes(batch, len(features))
    check_ids(batch, tables, features)


def check_shapes(batch: Batch, features: int, rising: bool = False) -> None:
    """Raise DataError when a batch's shapes disagree; with `rising` the offsets are known to be in order."""
    bags = batch.size * features
    if len(batch.offsets) != bags + 1:
        raise DataError(f"offsets must have samples * features + 1 = {bags + 1} entries, got {len(batch.offsets)}")
    if len(batch.dense_BX) != batch.size:
        raise DataError(f"dense features must have {batch.size} samples like the labels, got {len(batch.dense_BX)}")
    if rising and batch.offsets[-1] == batch.lookups:
        return
    if batch.offsets[0] != 0 or batch.offsets[-1] != batch.lookups or np.any(np.diff(batch.offsets) < 0):
        raise DataError(f"offsets must rise from 0 to the number of lookups, {batch.lookups}")


def check_ids(batch: Batch, tables: tuple[TableSpec, ...], features: tuple[FeatureSpec, ...]) -> None:
    """Raise DataError for the first id that lies outside its table."""
    rows_F = np.array([tables[f.table].rows for f in features], dtype=np.int64)
    lengths = np.diff(batch.offsets)
    limit_N = np.repeat(np.tile(rows_F, batch.size), lengths)
    wrong = np.flatnonzero((batch.ids_N < 0) | (batch.ids_N >= limit_N))
    if len(wrong):
        lookup = int(wrong[0])
        bag = int(np.searchsorted(batch.offsets, lookup, side="right")) - 1
        feature = features[bag % len(features)]
        table = tables[feature.table]
        raise DataError(
            f"ids of table {table.name} must lie in [0, {table.rows}), got {batch.ids_N[lookup]} "
            f"(sample {bag // len(features)} of the batch, feature {feature.name})",
            faq="ids-beyond-the-table",
        )
