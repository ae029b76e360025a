"""The held-out rows of a log of positives alone, user by user, and the items that each user's are ranked among."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, join_batches, take
from adaptive_rec.config.eval import EvalConfig
from adaptive_rec.data.implicit.bags import single_ids
from adaptive_rec.data.implicit.draws import Draws
from adaptive_rec.data.implicit.negatives import SURVEY_ROWS, WithNegatives
from adaptive_rec.data.source import Source
from adaptive_rec.errors import DataError
from adaptive_rec.units import percent, whole

MOST_PAIRS = 1 << 20
"""Pairs of user and item that are held at a time, unless one user has more."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class UsersOfRows:
    """The users of the held-out rows that are ranked: G of them, each in the context of the first of its held-out rows."""

    first_row_G: Integers
    """Number of that row."""
    ids_G: Integers
    """Of the user; without a column of users, each row is one."""
    chosen: tuple[Integers, ...]
    """The numbers of the items that each has chosen, -1 for those that no training row has."""
    of_all: int
    """Users of the held-out rows that have such items."""


@dataclass(frozen=True)
class UserBlock:
    """Some users, and the items that they are ranked among: P pairs."""

    context_P: Integers
    """The number of the pair's user."""
    number_P: Integers
    """The number of its item."""
    is_chosen_P: NDArray[np.bool_]
    missed: Integers
    """The user of each item that was chosen and that no training row has: it is ranked behind all others."""


class Candidates:
    """Users of the held-out rows, block by block, with all items of the training rows, or those chosen and some that are drawn
    evenly. Items of a user's training rows are left out, unless `eval.rank_seen` says otherwise."""

    def __init__(
        self, drawn: WithNegatives, settings: EvalConfig, seed: int, rows: Source | None = None, validation: bool = False
    ) -> None:
        """Read the held-out rows, those of the validation slice, or new `rows` in their place, once for their users and once for
        the contexts. Raises DataError where there is nothing to rank."""
        self._drawn, self._settings, self._seed, self._rows = drawn, settings, seed, rows or drawn
        self._validation = validation
        self._pool = np.flatnonzero(drawn.items.is_one_I)
        self._leaves_out = None if settings.rank_seen else drawn.seen
        self.users = self._users()
        self.contexts = self._contexts()

    @property
    def items(self) -> int:
        """Items that a user is ranked among at the most."""
        return min(self._settings.candidates or len(self._pool), len(self._pool))

    @property
    def shares_I(self) -> NDArray[np.float64]:
        """How probable each item is as a negative."""
        return self._drawn.draws.shares_I

    def in_words(self) -> str:
        """Return which users are ranked among which items, for people."""
        ranked, of = len(self.users.ids_G), self.users.of_all
        users = f"{whole(ranked)} of {whole(of)} users" if ranked < of else f"{whole(ranked)} users"
        if self._drawn.user is None:
            users = users.replace("users", "rows")
        few, of = self.items, len(self._pool)
        items = f"{whole(few)} of {whole(of)} items, drawn for each" if few < of else f"all {whole(of)} items"
        left_out = "" if self._leaves_out is None else ", those of their training rows left out"
        missed, chosen = (sum(map(count, self.users.chosen)) for count in (lambda items: int((items < 0).sum()), len))
        new = f"; {percent(missed / chosen)} of what they chose is in no training row, and missed" if missed else ""
        return f"{users} ranked among {items}{left_out}{new}"

    def blocks(self) -> Iterator[UserBlock]:
        """Yield the users in their order."""
        users = max(1, MOST_PAIRS // max(1, self.items))
        for start in range(0, len(self.users.ids_G), users):
            yield self._block(np.arange(start, min(start + users, len(self.users.ids_G))))

    def batch(self, block: UserBlock, pairs: slice) -> Batch:
        """Return some pairs of a block as a batch."""
        batch = self._drawn.items.put_into(self.contexts, block.context_P[pairs], block.number_P[pairs])
        return replace(batch, position=Position())

    def _users(self) -> UsersOfRows:
        drawn = self._drawn
        users: list[Integers] = []
        numbers: list[Integers] = []
        for batch in self._rows.test_batches(SURVEY_ROWS, self._settings.max_samples, self._validation):
            numbers.append(drawn.items.numbers(single_ids(batch, drawn.item)))
            users.append(numbers[-1] if drawn.user is None else single_ids(batch, drawn.user).copy())
        if not numbers:
            raise DataError("the held-out range must hold at least one sample, got 0; widen data.test_range")
        number_R, user_R = np.concatenate(numbers), np.concatenate(users)
        if drawn.user is None:
            user_R = np.arange(len(number_R))
        kept_R = np.ones(len(number_R), bool)
        number_R = np.where((number_R >= 0) & drawn.items.is_one_I[number_R], number_R, -1)
        if self._leaves_out is not None:
            known = np.flatnonzero(number_R >= 0)
            kept_R[known] = ~self._leaves_out.has(user_R[known], number_R[known])
        ids_U, first_U, user_of_R = np.unique(user_R, return_index=True, return_inverse=True)
        in_order = np.lexsort((number_R, user_of_R))
        in_order = in_order[kept_R[in_order]]
        found_U = np.bincount(user_of_R[in_order], minlength=len(ids_U))
        with_any = np.flatnonzero(found_U)
        with_any = with_any[np.argsort(first_U[with_any])]
        if not len(with_any):
            raise DataError(
                "held-out rows must have an item that the user has not among the training rows, none has; eval.rank_seen=true "
                "ranks those, too"
            )
        most = self._settings.max_users
        ranked = with_any
        if most and len(with_any) > most:
            ranked = with_any[np.sort(np.random.default_rng(self._seed).permutation(len(with_any))[:most])]
        parts = np.split(number_R[in_order], np.cumsum(found_U)[:-1])
        chosen = tuple(distinct_items(parts[user]) for user in ranked.tolist())
        return UsersOfRows(first_U[ranked], ids_U[ranked], chosen, len(with_any))

    def _contexts(self) -> Batch:
        """Return the first held-out row of each user that is ranked."""
        parts, begin, wanted = [], 0, self.users.first_row_G  # in the order of the rows
        for batch in self._rows.test_batches(SURVEY_ROWS, self._settings.max_samples, self._validation):
            inside = wanted[(wanted >= begin) & (wanted < begin + batch.size)] - begin
            begin += batch.size
            if len(inside):
                parts.append(take(batch, inside))
        return join_batches(parts)

    def _block(self, users_G: Integers) -> UserBlock:
        chosen = [self.users.chosen[user] for user in users_G.tolist()]
        place_C = np.repeat(np.arange(len(users_G)), [len(items) for items in chosen])
        number_C = np.concatenate(chosen)
        missed, found = place_C[number_C < 0], number_C >= 0
        place_C, number_C = place_C[found], number_C[found]
        if self.items < len(self._pool):
            return self._of_some(users_G, place_C, number_C, missed)
        candidate_GI = np.tile(self._drawn.items.is_one_I, (len(users_G), 1))
        if self._leaves_out is not None:
            candidate_GI[self._leaves_out.items(self.users.ids_G[users_G])] = False
        chosen_GI = np.zeros(candidate_GI.shape, bool)
        chosen_GI[place_C, number_C] = True
        place_P, number_P = np.nonzero(candidate_GI)
        return UserBlock(users_G[place_P], number_P, chosen_GI[place_P, number_P], users_G[missed])

    def _of_some(self, users_G: Integers, place_C: Integers, number_C: Integers, missed: Integers) -> UserBlock:
        """Return users with the items that they have chosen, and others that are drawn evenly for each."""
        places_N = np.ravel(users_G[:, None] * self.items + np.arange(self.items))
        drawn_GN = Draws.evenly(len(self._pool)).draw(self._seed, 0, places_N)
        place_N, number_N = np.repeat(np.arange(len(users_G)), self.items), self._pool[drawn_GN]
        if self._leaves_out is not None:
            new = ~self._leaves_out.has(self.users.ids_G[users_G[place_N]], number_N)
            place_N, number_N = place_N[new], number_N[new]
        code_C, code_N = place_C << 32 | number_C, place_N << 32 | number_N
        code_P = np.union1d(code_C, code_N)
        return UserBlock(users_G[code_P >> 32], code_P & (1 << 32) - 1, np.isin(code_P, code_C), users_G[missed])


def distinct_items(number_R: Integers) -> Integers:
    """Return each item once; those that no training row has are not known to be the same."""
    return np.concatenate([number_R[number_R < 0], np.unique(number_R[number_R >= 0])])
