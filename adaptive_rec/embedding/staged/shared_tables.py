"""Tables in host memory that kernels of the device read and write by themselves: they are locked."""

from __future__ import annotations

import weakref

from torch import Tensor

from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.embedding.staged.streams import Streams


class SharedTables:
    """Weights and optimizer state of some pools of the host tier. They stay locked until `close`, or until nobody has this object
    any more, as after a failure: memory that is freed while it is locked spoils what comes to lie there."""

    def __init__(self, streams: Streams, cold: InMemory, pools: list[int]) -> None:
        """Raises ConfigError where the memory cannot be locked."""
        self._tables: dict[int, list[Tensor]] = {}
        shared: list[Tensor] = []
        unlock = weakref.finalize(self, _unlock, streams, shared)
        unlock.atexit = False
        self.close = unlock
        """Unlocks the memory, once the device has done all computation queued so far."""
        try:
            for pool in pools:
                self._tables[pool] = []
                for array in cold.arrays(pool):
                    table = as_tensor(array)
                    if table.nbytes:
                        shared.append(table)  # first: whoever is interrupted while it is being locked cannot know
                        streams.share(table)
                    else:  # there is nothing to lock, and kernels take an address all the same
                        table = table.to(streams.device)
                    self._tables[pool].append(table)
        except BaseException:
            self.close()
            raise

    def __contains__(self, pool: object) -> bool:
        return self.close.alive and pool in self._tables

    def of_pool(self, pool: int) -> tuple[Tensor, Tensor]:
        """Return a pool's weights and optimizer state."""
        weights, state = self._tables[pool]
        return weights, state


def _unlock(streams: Streams, shared: list[Tensor]) -> None:
    for table in shared:
        streams.unshare(table)
    shared.clear()
