"""Rows that the ranks of a group ask of one another by their numbers, outside of the steps of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.system.group import SIZE, Group


@dataclass(frozen=True)
class AskedRows:
    """The rows that a rank asks of the others, owner after owner, and those that are asked of it, rank after rank."""

    group: Group
    order_U: NDArray[np.int64]
    """This rank's rows, by their numbers among those that it named, owner after owner."""
    sent_W: NDArray[np.int64]
    row_M: NDArray[np.int64]
    """Rows that are asked of this rank, by their numbers among its own."""
    received_W: NDArray[np.int64]

    @staticmethod
    def ask(
        group: Group, ownership: Ownership, row_U: NDArray[np.int64],
        exchange_sizes: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> AskedRows:  # fmt: skip
        """Tell the owners of rows, by their numbers in the joint row space, that they are asked for. `exchange_sizes` tells each
        rank how many it will get, and returns how many each rank will send here."""
        owner_U, own_row_U = ownership.split(row_U)
        order_U = np.argsort(owner_U.astype(np.int32), kind="stable")
        sent_W = np.bincount(owner_U, minlength=group.ranks)
        received_W = exchange_sizes(sent_W)
        row_M = group.exchange("requests", own_row_U[order_U].astype(SIZE), sent_W, received_W).astype(np.int64)
        return AskedRows(group, order_U, sent_W, row_M, received_W)

    def answer(self, values_MD: NDArray[Any]) -> NDArray[Any]:
        """Send the values of the rows that are asked here; return those of this rank's rows (U, D)."""
        found = self.group.exchange("rows", values_MD, self.received_W, self.sent_W)
        values_UD = np.empty_like(found)
        values_UD[self.order_U] = found
        return values_UD

    def send(self, values_UD: NDArray[Any]) -> NDArray[Any]:
        """Send values of this rank's rows to their owners; return those that are for this rank (M, D), rank after rank."""
        return self.group.exchange("gradients", values_UD[self.order_U], self.sent_W, self.received_W)
