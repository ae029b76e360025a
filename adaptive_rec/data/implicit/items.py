"""The items of a log of positives alone, found in one pass over its training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, part_beside
from adaptive_rec.data.implicit.bags import FeatureBags, bag_values, single_ids
from adaptive_rec.errors import DataError

Integers = NDArray[np.int64]

USUAL, TOLD = 0.9, 0.3
"""A column is a property of the item where this share of an item's further rows have the value of its first one. Where it is this
much larger than among any two rows, a chosen item shows in the column."""
LEAST_ROWS = 20
"""With fewer further rows nothing but its own column is a property of the item."""


@dataclass(frozen=True)
class Items:
    """The items of the training rows, by rising id: I of them. Some columns are a property of the item: they have one value in
    all of its rows, or nearly all; it is that of the first one."""

    ids_I: Integers
    """Ids of rows, or raw keys."""
    rows_I: Integers
    """Training rows of each."""
    is_one_I: NDArray[np.bool_]
    """False for the id that values share which occur too seldom: it is drawn like an item, and is no item to recommend."""
    features: Integers
    """The features that are properties of the item, its own among them."""
    dense: Integers
    """The dense columns that are."""
    bags: FeatureBags
    """Of these features, (I, features)."""
    dense_IX: NDArray[np.float32]
    """Of these columns."""
    usual_F: NDArray[np.float64]
    """Of all features: the share of the items' rows that have the value of the first one."""
    usual_X: NDArray[np.float64]
    """Of all dense columns."""
    told_F: Integers
    """Features that are no properties, but nearly: which item was chosen shows in them."""
    told_X: Integers
    """Dense columns of that kind."""

    def __len__(self) -> int:
        return len(self.ids_I)

    def numbers(self, ids_S: Integers) -> Integers:
        """Return the number of each id's item, -1 where no training row has it."""
        place_S = np.minimum(np.searchsorted(self.ids_I, ids_S), len(self) - 1)
        return np.where(self.ids_I[place_S] == ids_S, place_S, -1)

    def put_into(self, batch: Batch, samples_S: Integers, number_S: Integers) -> Batch:
        """Return samples of a batch with the items of these numbers in place of their own; -1 keeps it. Labels are as before."""
        replaced_S = number_S >= 0
        drawn = number_S[replaced_S]
        features = (len(batch.offsets) - 1) // batch.size
        bags = FeatureBags.of(batch, features).take(samples_S)
        bags = bags.with_others(self.bags.take(drawn).compact(), replaced_S, self.features)
        dense_SX = batch.dense_BX[samples_S]
        dense_SX[np.ix_(np.flatnonzero(replaced_S), self.dense)] = self.dense_IX[drawn]
        ids_N, offsets = bags.packed()
        labels_S, beside = batch.labels_B[samples_S], part_beside(batch, samples_S)
        return replace(batch, dense_BX=dense_SX, ids_N=ids_N, offsets=offsets, labels_B=labels_S, **beside)


@dataclass
class ItemSurvey:
    """A pass over training rows that finds their items and which columns are properties of these."""

    item: int
    """The feature of the items."""
    user: int | None
    """The feature of the users, which is no property of what they choose."""
    features: int
    dense_features: int
    missing_id: int
    """The id of a row without an item."""
    shared_id: int | None
    """The id of values that occur too seldom, which has no properties."""
    _ids: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    """Of the items in the order in which they came; so are the next ones."""
    _order: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    """The numbers of `_ids` by rising id."""

    def __post_init__(self) -> None:
        self._rows = np.empty(0, np.int64)
        self._values = np.empty((0, self.features), np.int64)
        self._dense = np.empty((0, self.dense_features), np.float32)
        self._bags: list[tuple[Integers, Integers]] = []
        self._judged = self._paired = 0
        columns = self.features + self.dense_features
        self._usual, self._by_chance = np.zeros(columns), np.zeros(columns)
        """Rows of an item that have the value of its first one, and pairs of rows that have the same value, by column."""

    def add(self, batch: Batch) -> None:
        """Take in some rows."""
        ids_B = single_ids(batch, self.item)
        is_further_B = ~np.isin(ids_B, [each for each in (self.missing_id, self.shared_id) if each is not None])
        distinct, first_U, of_B = np.unique(ids_B, return_index=True, return_inverse=True)
        is_item_U = distinct != self.missing_id
        values_BF = bag_values(batch, self.features)
        number_U = self._numbers(distinct)
        new_U = np.flatnonzero(is_item_U & (number_U < 0))
        if len(new_U):
            self._append(batch, distinct[new_U], first_U[new_U], values_BF)
            number_U[new_U] = len(self._ids) - len(new_U) + np.arange(len(new_U))
            is_further_B[first_U[new_U]] = False
        counts_U = np.bincount(of_B, minlength=len(distinct))
        self._rows[number_U[is_item_U]] += counts_U[is_item_U]
        further = np.flatnonzero(is_further_B)
        number_J = number_U[of_B[further]]
        dense_BX, known_IX = batch.dense_BX.view(np.int32), self._dense.view(np.int32)
        self._judged += len(further)
        self._usual += _same(values_BF[further], self._values[number_J], dense_BX[further], known_IX[number_J])
        self._paired += batch.size
        self._by_chance += _same(values_BF, values_BF[::-1], dense_BX, dense_BX[::-1])

    def _numbers(self, ids_U: Integers) -> Integers:
        if not len(self._ids):
            return np.full(len(ids_U), -1)
        rising = self._ids[self._order]
        place_U = np.minimum(np.searchsorted(rising, ids_U), len(rising) - 1)
        return np.where(rising[place_U] == ids_U, self._order[place_U], -1)

    def _append(self, batch: Batch, ids_U: Integers, first_U: Integers, values_BF: Integers) -> None:
        self._ids = np.concatenate([self._ids, ids_U])
        self._order = np.argsort(self._ids)
        self._rows = np.concatenate([self._rows, np.zeros(len(ids_U), np.int64)])
        self._values = np.concatenate([self._values, values_BF[first_U]])
        self._dense = np.concatenate([self._dense, batch.dense_BX[first_U]])
        ids_N, offsets = FeatureBags.of(batch, self.features).take(first_U).packed()
        self._bags.append((ids_N, np.diff(offsets)))

    def items(self) -> Items:
        """Return the items of all rows that were taken in. Raises DataError where there are not two."""
        if len(self._ids) < 2:
            raise DataError(f"training rows must have at least two items to draw others among, got {len(self._ids)}")
        by_chance = self._by_chance / max(1, self._paired)
        usual = self._usual / self._judged if self._judged >= LEAST_ROWS else np.zeros(len(self._usual))
        usual[self.item] = 1.0
        if self.user is not None:
            usual[self.user] = 0.0
        is_property = usual >= USUAL
        told = ~is_property & (usual - by_chance >= TOLD)
        of_item, dense = np.flatnonzero(is_property[: self.features]), np.flatnonzero(is_property[self.features :])
        lengths_IF = np.concatenate([lengths for _, lengths in self._bags]).reshape(-1, self.features)
        starts = np.concatenate([[0], np.cumsum(lengths_IF.reshape(-1))[:-1]]).reshape(-1, self.features)
        ids_N = np.concatenate([ids for ids, _ in self._bags])
        bags = FeatureBags(ids_N, starts[:, of_item], lengths_IF[:, of_item]).take(self._order).compact()
        ids_I = self._ids[self._order]
        is_one_I = np.ones(len(ids_I), bool) if self.shared_id is None else ids_I != self.shared_id
        return Items(
            ids_I, self._rows[self._order], is_one_I, of_item, dense, bags, self._dense[self._order][:, dense],
            usual[: self.features], usual[self.features :], np.flatnonzero(told[: self.features]),
            np.flatnonzero(told[self.features :]),
        )  # fmt: skip


def _same(*pairs: NDArray[Any]) -> NDArray[np.float64]:
    """Return in how many rows the columns of two arrays are the same, of several such pairs of arrays."""
    found = [np.count_nonzero(one == other, axis=0) for one, other in zip(pairs[::2], pairs[1::2], strict=True)]
    return np.concatenate(found).astype(np.float64)


def items_of(batches: Iterable[Batch], survey: ItemSurvey) -> Items:
    """Return the items of batches of training rows."""
    for batch in batches:
        survey.add(batch)
    return survey.items()
