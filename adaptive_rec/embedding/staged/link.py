"""The way between the devices of the ranks of a group: their operations are queued on the device, and the host waits for none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.system.group_meter import GroupMeter

if TYPE_CHECKING:
    from adaptive_rec.system.torch_group import TensorChannel


class Link(ABC):
    """What a group's `exchange` and `add` are for arrays, for tensors of the device. Ranks queue them in the same order."""

    def __init__(self, rank: int, ranks: int, meter: GroupMeter) -> None:
        self._rank, self._ranks = rank, ranks
        self._meter = meter

    def exchange(
        self, kind: str, lines: Tensor, sent_W: NDArray[np.int64], received_W: NDArray[np.int64]
    ) -> Tensor:
        """Queue that lines are sent to the ranks, the first `sent_W[0]` of them to rank 0 and so on. Returns where the lines will
        be that are sent here, rank after rank. Both sizes are known to the host, so it does not wait for the device."""
        line_bytes = lines.itemsize * prod(lines.shape[1:])
        self._meter.sent_bytes[kind] += line_bytes * int(sent_W.sum() - sent_W[self._rank])
        found = lines.new_empty((int(received_W.sum()), *lines.shape[1:]))
        self._exchange(lines, found, sent_W.tolist(), received_W.tolist())
        return found

    def add(self, kind: str, tensor: Tensor) -> None:
        """Queue that a tensor is added up over all ranks, in place. Every rank gets the same bits. Bytes as in `Group.add`."""
        self._meter.sent_bytes[kind] += 2 * (self._ranks - 1) * tensor.nbytes // self._ranks
        self._add(tensor)

    @abstractmethod
    def _exchange(self, lines: Tensor, found: Tensor, sent_W: list[int], received_W: list[int]) -> None: ...

    @abstractmethod
    def _add(self, tensor: Tensor) -> None: ...


class TorchLink(Link):
    """Operations of `torch.distributed`: on GPUs those of NCCL, which come after the computation queued before, and which the
    computation queued later waits for."""

    def __init__(
        self, channel: TensorChannel, meter: GroupMeter, launch: Callable[[Callable[[], object]], None]
    ) -> None:
        super().__init__(channel.rank, channel.ranks, meter)
        self._channel, self._launch = channel, launch

    def _exchange(self, lines: Tensor, found: Tensor, sent_W: list[int], received_W: list[int]) -> None:
        self._launch(lambda: self._channel.exchange(lines, found, sent_W, received_W))

    def _add(self, tensor: Tensor) -> None:
        self._launch(lambda: self._channel.add(tensor))
