"""The group of a run that torchrun has started, on `torch.distributed` with gloo."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from adaptive_rec.errors import GroupError, UsageError, first_line
from adaptive_rec.system.group import Bytes, Group

T = TypeVar("T")

DEADLINE_SECONDS = 25
"""How long a rank waits for the others in a step."""

START_SECONDS = 600
"""How long ranks wait for one another until all have read their data and drawn their rows."""


def started_by_torchrun() -> bool:
    """Whether this process is one of several that torchrun, or a launcher with the same variables, has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


class TorchGroup(Group):
    """The ranks of the processes that torchrun has started."""

    @staticmethod
    def join() -> TorchGroup:
        """Join the group that the environment names. Raises UsageError where that fails."""
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=START_SECONDS))
        except (RuntimeError, ValueError) as error:
            rule = "processes must be started by torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            raise UsageError(f"{rule}: {first_line(error)}") from error
        return TorchGroup(dist.new_group(timeout=timedelta(seconds=START_SECONDS)))

    def __init__(self, channel: Any, sent_bytes: Counter[str] | None = None) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), sent_bytes)
        self._channel = channel

    def fork(self) -> TorchGroup:
        return TorchGroup(dist.new_group(timeout=timedelta(seconds=DEADLINE_SECONDS)), self.sent_bytes)

    def add(self, array: NDArray[Any]) -> None:
        tensor = torch.from_numpy(array)
        self._with_deadline(lambda: dist.all_reduce(tensor, group=self._channel))

    def _all_to_all(self, data: Bytes, sent_W: list[int], received_W: list[int]) -> Bytes:
        found = torch.empty(sum(received_W), dtype=torch.uint8)
        sent = torch.from_numpy(data)
        self._with_deadline(lambda: dist.all_to_all_single(found, sent, received_W, sent_W, group=self._channel))
        return found.numpy()

    def _all_gather(self, data: Bytes) -> list[Bytes]:
        found = torch.empty(self.ranks * len(data), dtype=torch.uint8)
        self._with_deadline(lambda: dist.all_gather_into_tensor(found, torch.from_numpy(data), group=self._channel))
        return list(found.numpy().reshape(self.ranks, -1))

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _with_deadline(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except RuntimeError as error:
            text = first_line(error)
            late = re.search("[Tt]imed out|[Tt]imeout", text) is not None
            rule = f"answer within {DEADLINE_SECONDS} seconds" if late else "stay connected"
            raise GroupError(
                f"all {self.ranks} ranks must {rule}, one did not (seen by rank {self.rank}): {text}"
            ) from error
