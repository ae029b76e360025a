"""The items of a log of positives alone, found in one pass over its training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, part_beside
from adaptive_rec.data.implicit.bags import Bags, bag_values, single_ids
from adaptive_rec.errors import DataError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Items:
    """The items of the training rows, by rising id: I of them. Some columns are a property of the item: they have one value in
    all of its rows."""

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
    bags: Bags
    """Of these features, (I, features)."""
    dense_IX: NDArray[np.float32]
    """Of these columns."""

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
        bags = Bags.of(batch, features).take(samples_S).with_others(self.bags.take(drawn).compact(), replaced_S, self.features)
        dense_SX = batch.dense_BX[samples_S]
        dense_SX[np.ix_(np.flatnonzero(replaced_S), self.dense)] = self.dense_IX[drawn]
        ids_N, offsets = bags.packed()
        labels_S, beside = batch.labels_B[samples_S], part_beside(batch, samples_S)
        return replace(batch, dense_BX=dense_SX, ids_N=ids_N, offsets=offsets, labels_B=labels_S, **beside)


@dataclass
class Survey:
    """A pass over training rows that finds their items and which columns are properties of these."""

    item: int
    """The feature of the items."""
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
        self._is_of_item = np.ones(self.features, bool)
        self._is_dense_of_item = np.ones(self.dense_features, bool)

    def add(self, batch: Batch) -> None:
        """Take in some rows."""
        ids_B = single_ids(batch, self.item)
        found_B = ids_B != self.missing_id
        distinct, first_U, of_B = np.unique(ids_B, return_index=True, return_inverse=True)
        is_item_U = distinct != self.missing_id
        values_BF = bag_values(batch, self.features)
        number_U = self._numbers(distinct)
        new_U = np.flatnonzero(is_item_U & (number_U < 0))
        if len(new_U):
            self._append(batch, distinct[new_U], first_U[new_U], values_BF)
            number_U[new_U] = len(self._ids) - len(new_U) + np.arange(len(new_U))
        counts_U = np.bincount(of_B, minlength=len(distinct))
        self._rows[number_U[is_item_U]] += counts_U[is_item_U]
        judged_B = np.flatnonzero(found_B if self.shared_id is None else found_B & (ids_B != self.shared_id))
        number_J = number_U[of_B[judged_B]]
        for f in np.flatnonzero(self._is_of_item).tolist():
            self._is_of_item[f] = bool((values_BF[judged_B, f] == self._values[number_J, f]).all())
        for x in np.flatnonzero(self._is_dense_of_item).tolist():
            same = batch.dense_BX[judged_B, x].view(np.int32) == self._dense[number_J, x].view(np.int32)
            self._is_dense_of_item[x] = bool(same.all())

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
        ids_N, offsets = Bags.of(batch, self.features).take(first_U).packed()
        self._bags.append((ids_N, np.diff(offsets)))

    def items(self) -> Items:
        """Return the items of all rows that were taken in. Raises DataError where there are not two."""
        if len(self._ids) < 2:
            raise DataError(f"training rows must have at least two items to draw others among, got {len(self._ids)}")
        of_item, dense = np.flatnonzero(self._is_of_item), np.flatnonzero(self._is_dense_of_item)
        lengths_IF = np.concatenate([lengths for _, lengths in self._bags]).reshape(-1, self.features)
        starts = np.concatenate([[0], np.cumsum(lengths_IF.reshape(-1))[:-1]]).reshape(-1, self.features)
        ids_N = np.concatenate([ids for ids, _ in self._bags])
        bags = Bags(ids_N, starts[:, of_item], lengths_IF[:, of_item]).take(self._order).compact()
        ids_I = self._ids[self._order]
        is_one_I = np.ones(len(ids_I), bool) if self.shared_id is None else ids_I != self.shared_id
        return Items(ids_I, self._rows[self._order], is_one_I, of_item, dense, bags, self._dense[self._order][:, dense])


def items_of(batches: Iterable[Batch], survey: Survey) -> Items:
    """Return the items of batches of training rows."""
    for batch in batches:
        survey.add(batch)
    return survey.items()
