"""Rows and gradients between the ranks of a user's loop, which make the same calls in the same order.

Every exchange begins with a header that says what a rank is about to do. So ranks that do different things get an error that
names both, where they would otherwise read each other's bytes as something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.peers.asked_rows import AskedRows
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.errors import GroupError, TrainingError
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import Group

LOOK_UP, UPDATE, READ, WRITE, NORM, TAKE, TOTAL = range(7)
VERBS = (
    "looks up", "updates", "reads the whole of", "writes to", "takes the norm of gradients of", "gives rows to raw ids of",
    "adds up lookups of",
)  # fmt: skip
SHARED = {UPDATE: "learning rates of rows", WRITE: "values written to rows or their optimizer state", NORM: "orders of a norm"}
"""What `RankCall.digest` is of, beside the tables."""
SAME_CALLS = (
    "ranks must make the same calls in the same order (forward and backward passes, optimizer steps, evaluation, state_dict)"
)


@dataclass(frozen=True)
class RankCall:
    """What a rank is about to do, and with which tables."""

    verb: int
    tables: tuple[int, ...]
    step: int = 0
    """Number of the present step, counted from 1; 0 where the caller does not know it."""
    digest: int = 0
    """A number that must be the same on all ranks too."""
    sound: bool = True
    """Whether this rank's gradients sum to finite numbers for each row."""
    own: str = ""
    """What the digest is of on this rank, for an error; empty: too much to say."""

    @property
    def header(self) -> list[int]:
        first = self.tables[0] if self.tables else -1
        return [self.verb, first, len(self.tables), self.digest, self.step, self.sound]


SAYS_WHAT = [0, 1, 2, 4]
"""The numbers of a header that an error says in words."""


@dataclass(frozen=True)
class RowExchange:
    """The exchanges of one rank with the others."""

    group: Group
    ownership: Ownership

    @cached_property
    def nothing(self) -> NDArray[np.int64]:
        """Sizes of parts for all ranks where there are none."""
        return np.zeros(self.group.ranks, dtype=np.int64)

    @property
    def space(self) -> RowSpace:
        return self.ownership.space

    # What all ranks do together --------------------------------------------------------------------------------------

    def begin(self, call: RankCall, sizes_W: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Begin what all ranks are about to do. `sizes_W`: how much each rank will get; returns how much each will send here.

        Raises GroupError where they are about to do different things, TrainingError where the gradients of one are not sound."""
        sizes_W = self.nothing if sizes_W is None else sizes_W
        lines = np.array([[*call.header, size] for size in sizes_W.tolist()], dtype=np.int64)
        each_W, own = np.ones_like(sizes_W), lines[0]
        try:
            found = self.group.exchange("requests", lines, each_W, each_W)
        except GroupError as error:
            raise GroupError(f"{error}; {SAME_CALLS}, this one {self._shown(own)}") from error
        for rank, line in enumerate(found):
            if np.array_equal(line[:5], found[0, :5]):
                continue
            if call.verb in SHARED and np.array_equal(line[SAYS_WHAT], found[0, SAYS_WHAT]):
                own = f", here {call.own}" if call.own else ""
                rule = f"{SHARED[call.verb]} must be the same on all ranks"
                raise GroupError(f"{rule}, those of rank 0 and rank {rank} differ{own}: each {self._shown(line)}")
            raise GroupError(f"{SAME_CALLS}, rank 0 {self._shown(found[0])} and rank {rank} {self._shown(line)}")
        if not found[:, 5].all():
            raise TrainingError(
                f"the gradients of an embedding row must sum to finite numbers, those of step {call.step} on rank "
                f"{int(np.argmin(found[:, 5]))} do not; no row was updated"
            )
        return found[:, 6]

    def _shown(self, line: NDArray[np.int64]) -> str:
        verb, first, tables, _, step = line[:5].tolist()
        name = f"table {self.space.tables[first].name}" if first >= 0 else "no table"
        more = f" and {tables - 1} more" if tables > 1 else ""
        return f"{VERBS[verb]} {name}{more}" + (f" in step {step}" if step else "")

    def ask(self, call: RankCall, row_U: NDArray[np.int64]) -> AskedRows:
        """Tell the owners of rows, by their numbers in the joint row space, that they are read or updated."""
        return AskedRows.ask(self.group, self.ownership, row_U, lambda sent_W: self.begin(call, sent_W))

    def join(self, call: RankCall, arrays: Sequence[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
        """Return the arrays of whole numbers of each rank, rank after rank. All ranks have equally many, of any lengths."""
        own = np.concatenate([np.array([len(array) for array in arrays], dtype=np.int64), *arrays])
        sent_W = np.full(self.group.ranks, len(own))
        received_W = self.begin(call, sent_W)
        found = self.group.exchange("requests", np.tile(own, self.group.ranks), sent_W, received_W)
        joined = []
        for part in np.split(found, np.cumsum(received_W)[:-1]):
            lengths, rest = part[: len(arrays)], part[len(arrays) :]
            joined.append(np.split(rest, np.cumsum(lengths)[:-1]))
        return joined

    # Whole tables ----------------------------------------------------------------------------------------------------

    def whole(self, table: int, own_BK: NDArray[Any], step: int) -> NDArray[Any]:
        """Return a table's values (R, K) from those of all ranks' rows."""
        self.begin(RankCall(READ, (table,), step))
        each_W = np.full(self.group.ranks, len(own_BK))
        found = self.group.exchange("tables", np.concatenate([own_BK] * self.group.ranks), each_W, each_W)
        whole_RK = np.empty((self.space.tables[table].rows, own_BK.shape[1]), dtype=own_BK.dtype)
        for rank, part in enumerate(np.split(found, self.group.ranks)):
            ids = self._ids(table, rank)
            inside = ids < len(whole_RK)
            whole_RK[ids[inside]] = part[inside]
        return whole_RK

    def block(self, table: int, low: int, own_BK: NDArray[Any], step: int) -> NDArray[Any] | None:
        """Return on rank 0 the values of successive rows of a table from those that all ranks have, from number `low` of each on:
        it owns the ids from `low * ranks` on. Others return None."""
        ranks, first = self.group.ranks, self.group.rank == 0
        self.begin(RankCall(READ, (table,), step, low))
        to_first_W = np.where(np.arange(ranks) == 0, len(own_BK), 0)
        found = self.group.exchange("tables", own_BK, to_first_W, np.full(ranks, len(own_BK)) if first else self.nothing)
        if not first:
            return None
        whole_RK = np.empty((len(own_BK) * ranks, own_BK.shape[1]), dtype=own_BK.dtype)
        for rank, part in enumerate(np.split(found, ranks)):
            ids = Ownership(self.space, ranks, rank).ids_of(table, low + np.arange(len(own_BK)))
            whole_RK[ids - low * ranks] = part
        return whole_RK

    def own(self, table: int, whole_RK: NDArray[Any], step: int) -> NDArray[Any]:
        """Return the values of this rank's rows of a table that all ranks write to, the same ones."""
        self.begin(RankCall(WRITE, (table,), step, crc32(np.ascontiguousarray(whole_RK).data)))
        part: NDArray[Any] = whole_RK[np.minimum(self._ids(table, self.group.rank), len(whole_RK) - 1)]
        return part

    def deal(self, table: int, whole_RK: NDArray[Any] | None, own_BK: NDArray[Any]) -> None:
        """Set this rank's rows of a table from the values that rank 0 has of the whole table."""
        self.begin(RankCall(WRITE, (table,)))
        each_W = np.full(self.group.ranks, len(own_BK))
        if whole_RK is None:
            lines, sent_W = own_BK[:0], self.nothing
        else:
            end = len(whole_RK) - 1
            parts = (whole_RK[np.minimum(self._ids(table, rank), end)] for rank in range(self.group.ranks))
            lines, sent_W = np.concatenate(list(parts)), each_W
        received_W = np.where(np.arange(self.group.ranks) == 0, each_W, 0)
        own_BK[:] = self.group.exchange("tables", lines, sent_W, received_W)

    def _ids(self, table: int, rank: int) -> NDArray[np.int64]:
        return Ownership(self.space, self.group.ranks, rank).owned_ids(table)


def shared_digest(values: Sequence[float]) -> int:
    """Return a number that differs where values differ."""
    return hash(tuple(values)) & 0x7FFF_FFFF
