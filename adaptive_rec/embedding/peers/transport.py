"""How vectors and gradients travel between ranks: from host to host, or from device to device."""

# ruff: noqa: B027 - what a variant need not do, it does not
from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.peers.requests import ExchangePlan, Requests, SentLines
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.system.group import Group


@dataclass(frozen=True)
class Agreement:
    """What the ranks do with the lines of a batch in one step."""

    sent: list[SentLines]
    """The lines of each pool whose gradients travel."""
    position_M: NDArray[np.int64]
    """Where the gradient of each sample of `Requests.owned` stands among those of its pool that come here; -1: none comes."""
    frozen_U: NDArray[np.bool_] | None
    """Distinct rows of `Requests.owned` whose update is skipped."""


class Transport(ABC):
    """Sends the vectors that are requested of this rank, and the gradients of the lines that it requested."""

    link: Any = None
    """The way from device to device (`Link`), if vectors take it."""
    is_late = False
    """Whether what is fetched from a device may be here at different times on different ranks."""

    @abstractmethod
    def stage(self, work: ClassifiedBatch) -> None:
        """Stage what is requested of this rank for a batch, ahead of its step."""

    def make_ready(self, work: ClassifiedBatch) -> None:
        """Make ready what is requested of this rank for a batch, whose step has started."""

    @abstractmethod
    def fetch(self, requests: Requests, pool: int, rounded: bool) -> Any:
        """Send the vectors of a pool that are requested here, and return those of this rank's lines, or their place."""

    @abstractmethod
    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        """Fill a micro-batch from the vectors that have come."""

    @abstractmethod
    def exchange_gradients(
        self, work: ClassifiedBatch, update: RowUpdate, agreed: Agreement, rounded: bool
    ) -> list[Tensor]:
        """Send the sums of the gradients of this rank's lines, and return for each pool those that come."""

    def release(self, requests: Requests) -> None:
        """End the use of a batch's lines."""


def answer(group: Group, way: ExchangePlan, values: NDArray[Any], places: int) -> NDArray[Any]:
    """Send what was requested here to those who requested it; return what this rank requested, in its places."""
    found = group.exchange("rows", values, way.received_W, way.sent_W)
    placed = np.empty((places, *found.shape[1:]), dtype=found.dtype)
    placed[way.place] = found
    return placed
