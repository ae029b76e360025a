"""The group of a run that torchrun has started, on `torch.distributed` with gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.errors import GroupError, RankError, UsageError, first_line
from adaptive_rec.system.group import Alone, Bytes, Group
from adaptive_rec.system.group_meter import GroupMeter
from adaptive_rec.system.group_watch import GroupWatch

T = TypeVar("T")

DEADLINE_SECONDS = 1800
"""How long a rank waits for another one that is alive, such as one that reads its data. `GroupWatch` notices the others."""

JOIN_SECONDS = 300
"""How long a rank waits for others that have not started yet."""

_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The same operation; torch has renamed it."""


class TensorChannel:
    """A channel of its own for tensors of the ranks' devices. NCCL queues its operations on the current stream."""

    def __init__(self, backend: str) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._channel = dist.new_group(timeout=timedelta(seconds=DEADLINE_SECONDS), backend=backend)

    def exchange(self, lines: Tensor, found: Tensor, sent_W: list[int], received_W: list[int]) -> None:
        """Send the lines to the ranks, and receive those of the ranks in `found`."""
        dist.all_to_all_single(found, lines, received_W, sent_W, group=self._channel)

    def add(self, tensor: Tensor) -> None:
        """Add up a tensor over all ranks, in place."""
        dist.all_reduce(tensor, group=self._channel)


class TorchGroup(Group):
    """The ranks of the processes that torchrun has started."""

    @staticmethod
    def join() -> TorchGroup:
        """Join the group that the environment names. Raises UsageError where that fails."""
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=JOIN_SECONDS))
        except (RuntimeError, ValueError) as error:
            rule = "processes must be started by torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            raise UsageError(f"{rule}: {first_line(error)}") from error
        group = TorchGroup(dist.new_group(timeout=timedelta(seconds=DEADLINE_SECONDS)))
        group._watch = GroupWatch(group)
        return group

    @staticmethod
    def beside() -> Group:
        """Return the ranks of the process group that a script has initialised, on a channel of their own; `Alone` where there is
        none, or one process."""
        return _beside(dist.group.WORLD) if ranks_of_script() > 1 else Alone()

    def __init__(self, channel: Any, meter: GroupMeter | None = None, watch: GroupWatch | None = None) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), meter)
        self._channel = channel
        self._watch = watch

    def fork(self) -> TorchGroup:
        return TorchGroup(dist.new_group(timeout=timedelta(seconds=DEADLINE_SECONDS)), self.meter, self._watch)

    def _add(self, array: NDArray[Any]) -> None:
        tensor = torch.from_numpy(array)
        self._connected(lambda: dist.all_reduce(tensor, group=self._channel))

    def _add_later(self, array: NDArray[Any]) -> Callable[[], object]:
        work = self._connected(lambda: dist.all_reduce(torch.from_numpy(array), group=self._channel, async_op=True))
        return lambda: self._connected(work.wait)

    def _all_to_all(self, data: Bytes, sent_W: list[int], received_W: list[int]) -> Bytes:
        found = torch.empty(sum(received_W), dtype=torch.uint8)
        sent = torch.from_numpy(data)
        self._connected(lambda: dist.all_to_all_single(found, sent, received_W, sent_W, group=self._channel))
        return found.numpy()

    def _all_gather(self, data: Bytes) -> list[Bytes]:
        found = torch.empty(self.ranks * len(data), dtype=torch.uint8)
        self._connected(lambda: _gather_into(found, torch.from_numpy(data), group=self._channel))
        return list(found.numpy().reshape(self.ranks, -1))

    def report_to(self, report: Callable[[str], object]) -> None:
        """Call a function with the reason before this process is ended because another one is gone."""
        if self._watch is not None:
            self._watch.report_to(report)

    def tell_failure(self, text: str, exit_code: int) -> None:
        """Send the error that ends this process to the other ranks, which then raise RankError."""
        if self._watch is not None:
            self._watch.tell_failure(text, exit_code)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _connected(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except RuntimeError as error:
            if self._watch is not None and (cause := self._watch.cause()) is not None:
                lost = f"an error has ended rank {cause.rank} (seen by rank {self.rank}): {cause.text}"
                raise RankError(f"all {self.ranks} ranks must stay connected, {lost}", cause.exit_code) from error
            raise GroupError(
                f"all {self.ranks} ranks must stay connected, one did not (seen by rank {self.rank})", faq="rank-ended"
            ) from error


def ranks_of_script() -> int:
    """Return the number of processes in the process group that a script has initialised; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@lru_cache(maxsize=1)
def _beside(world: Any) -> TorchGroup:
    """Return the group of a script's process group, the same one for all who ask."""
    return TorchGroup(dist.new_group(timeout=timedelta(seconds=DEADLINE_SECONDS), backend="gloo"))
