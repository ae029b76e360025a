"""Tables in host memory that kernels of the device read and write by themselves. They stay locked until `close`."""

from __future__ import annotations

from torch import Tensor

from adaptive_rec.embedding.host import HostTier
from adaptive_rec.embedding.row_types import as_tensor
from adaptive_rec.embedding.staged.streams import Streams


class SharedTables:
    """Weights and optimizer state of some pools of the host tier."""

    def __init__(self, streams: Streams, host: HostTier, pools: list[int]) -> None:
        """Raises ConfigError where the memory cannot be locked."""
        self._streams = streams
        self._tables: dict[int, list[Tensor]] = {}
        try:
            for pool in pools:
                self._tables[pool] = []
                for array in host.arrays(pool):
                    table = as_tensor(array)
                    if not table.nbytes:  # there is nothing to lock, and kernels take an address all the same
                        table = table.to(streams.device)
                    self._tables[pool].append(table)  # first: memory freed while it is locked spoils what comes to lie there
                    streams.share(table)
        except BaseException:
            self.close()
            raise

    def __contains__(self, pool: object) -> bool:
        return pool in self._tables

    def of_pool(self, pool: int) -> tuple[Tensor, Tensor]:
        """Return a pool's weights and optimizer state."""
        weights, state = self._tables[pool]
        return weights, state

    def close(self) -> None:
        """Unlock the memory, once the device has done all work with it."""
        tables, self._tables = self._tables, {}
        for of_pool in tables.values():
            for table in of_pool:
                self._streams.unshare(table)
