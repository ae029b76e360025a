"""A source of positives alone with negatives drawn among its items: the sampled negatives of a pointwise log loss (He et al.,
"Neural Collaborative Filtering", WWW 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.data import ImplicitConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data.implicit.bags import single_ids
from adaptive_rec.data.implicit.draws import Draws
from adaptive_rec.data.implicit.items import ItemSurvey, items_of
from adaptive_rec.data.implicit.rows import RowsInOrder
from adaptive_rec.data.implicit.seen import ItemsOfUsers
from adaptive_rec.data.source import Source, Wrapped, epoch_batches
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import ConfigError
from adaptive_rec.kernels.number_keys import INFREQUENT_ID, MISSING_ID
from adaptive_rec.units import percent, readable, whole

SURVEY_ROWS = 1 << 16
"""Training rows that are looked at together."""
RAW_MISSING = np.iinfo(np.int64).min
"""The raw key of a missing value."""

Integers = NDArray[np.int64]


class WithNegatives(Wrapped):
    """A source whose training samples are each row of another one, with label 1, followed by its negatives, with label 0: the
    same row with another item, and the columns that are properties of the item. Positions and sizes count samples, so a batch
    may end within the negatives of a row. Held-out rows are passed on as they are.

    A negative depends on the seed, the epoch and its place in it, whatever reads it: another process, a policy that reads
    ahead, a run that resumes.
    """

    has_same_ids = has_groups = True

    def __init__(self, source: Source, config: Config, schema: Schema) -> None:
        """Read the training rows once. Raises DataError where they have no two items."""
        super().__init__(source)
        settings = config.data.implicit
        self.settings: ImplicitConfig = settings
        self.each = 1 + settings.negatives
        """Samples of each row."""
        features = [feature.name for feature in source.features]
        item, user = schema.choice
        self.item = features.index(item)
        self.user = features.index(user) if user else None
        """The features of items and users."""
        self.train_samples = source.train_samples * self.each
        raw = config.data.ids == "raw"
        missing, shared = (RAW_MISSING, None) if raw else (MISSING_ID, INFREQUENT_ID)
        survey = ItemSurvey(self.item, self.user, len(features), source.dense_features, missing, shared)
        self._names = [*features, *(column.feature for column in schema.dense)]
        users: list[Integers] = []
        numbers: list[Integers] = []
        self.items = items_of(self._noted(users, numbers), survey)
        number_R = self.items.numbers(np.concatenate(numbers))
        self.seen = None if self.user is None else ItemsOfUsers(np.concatenate(users), number_R)
        """The items of each user; None where rows name no user."""
        self.draws = Draws(settings, self.items.rows_I)

    def _noted(self, users: list[Integers], items: list[Integers]) -> Iterator[Batch]:
        """Yield the training rows of one epoch, and note the users and items of each."""
        for batch in self._source.train_batches(Position(), SURVEY_ROWS):
            items.append(single_ids(batch, self.item).copy())
            if self.user is not None:
                users.append(single_ids(batch, self.user).copy())
            yield batch
            if batch.position.epoch:
                return

    @property
    def bytes(self) -> int:
        """Memory of the items and of what users have seen."""
        items = self.items
        arrays = (items.ids_I, items.rows_I, items.dense_IX, items.bags.ids_N, items.bags.starts_SF, items.bags.lengths_SF)
        return sum(array.nbytes for array in arrays) + (0 if self.seen is None else self.seen.bytes)

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches from `position` on."""
        for epoch in range(position.epoch, self.epochs):
            rows: RowsInOrder | None = None
            for start, stop, after in epoch_batches(position, epoch, self.train_samples, batch_size):
                first, end = start // self.each, -(-stop // self.each)
                if rows is None:
                    begin = Position(epoch, position.seed, first)
                    rows = RowsInOrder(self._source.train_batches(begin, -(-batch_size // self.each)), first)
                yield self._with_negatives(rows.take(first, end), range(start, stop), after, epoch, position.seed)

    def untaken_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the rest of the training samples, then the held-out rows."""
        if position.epoch == 0:
            yield from self.train_batches(position, batch_size)
        yield from self.test_batches(batch_size)

    def _with_negatives(self, rows: Batch, places: range, after: Position, epoch: int, seed: int) -> Batch:
        """Return the samples of some places of an epoch; `rows` has their positives."""
        place_S = np.arange(places.start, places.stop)
        row_S = place_S // self.each - places.start // self.each
        is_drawn_S = place_S % self.each > 0
        drawn = np.flatnonzero(is_drawn_S)
        own_B = self.items.numbers(single_ids(rows, self.item))
        users_B = None if self.user is None or self.settings.seen == "accept" else single_ids(rows, self.user)

        def is_wrong(among: Integers, number: Integers) -> NDArray[np.bool_]:
            row = row_S[drawn[among]]
            wrong: NDArray[np.bool_] = number == own_B[row]
            return wrong if users_B is None or self.seen is None else wrong | self.seen.has(users_B[row], number)

        number_S = np.full(len(place_S), -1)
        number_S[drawn] = self.draws.draw_until(seed, epoch, place_S[drawn], is_wrong)
        batch = self.items.put_into(rows, row_S, number_S)
        return replace(batch, labels_B=(~is_drawn_S).astype(np.float32), position=after)

    def in_words(self) -> str:
        """Return how negatives are drawn, for people."""
        settings, items = self.settings, self.items
        how = "uniformly" if settings.sampling == "uniform" else f"by popularity to the power of {settings.power:g}"
        names = self._named(items.features, items.dense)
        properties = f"; with the item: {names}" if names else ""
        return f"{settings.negatives} for each row, drawn {how} from {whole(len(items))} items{properties}"

    def remarks(self) -> list[str]:
        """Return what is to be said of columns that show which item was chosen."""
        names = self._named(self.items.told_F, self.items.told_X)
        if not names:
            return []
        return [
            f"most rows of an item have one value of {names}: the chosen item shows in such columns beside others drawn. If they "
            "are known only once it was chosen, such as its price, leave them out of the schema, or the model is of no use"
        ]

    def _named(self, features: Integers, dense: Integers) -> str:
        """Return the names of columns but that of the items, and for each the share of rows that have the item's usual value."""
        count = len(self.features)
        ratio = np.concatenate([self.items.usual_F, self.items.usual_X])
        columns = [*(f for f in features.tolist() if f != self.item), *(count + x for x in dense.tolist())]
        shares = [f" ({percent(ratio[c])} of rows)" if ratio[c] < 1 else "" for c in columns if c < len(self._names)]
        return ", ".join(dict.fromkeys(f"{readable(self._names[c], word=60)}{s}" for c, s in zip(columns, shares, strict=False)))


def with_negatives(source: Source, config: Config, schema: Schema | None) -> Source:
    """Return a source with negatives where its rows are all positives, else the source. Raises ConfigError where settings and
    schema contradict each other."""
    settings = config.data.implicit
    if schema is None or schema.implicit is None:
        if given := settings.given:
            rule = ", ".join(f"data.implicit.{name}" for name in given)
            got = ", ".join(map(str, given.values()))
            raise ConfigError(
                f"{rule} must be left out where rows have labels, got {got}; data whose rows are all positives is given by "
                "--item COLUMN, or has [implicit] in its schema"
            )
        return source
    if not settings.negatives:
        raise ConfigError(
            "data.implicit.negatives must be at least 1 for data whose rows are all positives, got 0; add --negatives 4 (or "
            "--set data.implicit.negatives=4)"
        )
    return WithNegatives(source, config, schema)


def negatives_of(source: Source) -> WithNegatives | None:
    """Return the source of negatives that a source passes on; None where rows have labels."""
    while isinstance(source, Wrapped) and not isinstance(source, WithNegatives):
        source = source.origin
    return source if isinstance(source, WithNegatives) else None
