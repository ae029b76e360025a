"""The store of a run of several processes whose tables are larger than memory: each rank keeps its rows in memory and on a disk.

This rank's rows are a `DiskStore`: what all ranks request of it is a batch of its own rows. As requests travel when a batch is
staged, the rows that other ranks request are read ahead of its step too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.disk.disk_snapshot import DiskSnapshot
from adaptive_rec.embedding.disk.disk_store import DiskStore
from adaptive_rec.embedding.disk.first_values import FreshRows
from adaptive_rec.embedding.shard_arrays import ROW
from adaptive_rec.embedding.shared.requests import Requests
from adaptive_rec.embedding.shared.shared_store import SharedStore


class SharedDiskStore(SharedStore, DiskStore):
    """This rank's rows, in memory and on a disk."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Arguments are those of a `SharedStore`, and the folder of this rank's rows."""
        super().__init__(*arguments, drawn=False, **named)  # they are drawn when they are read

    def _first_values(self) -> FreshRows:
        return FreshRows(self.seed, self.batch_space.tables, self.ownership.ids_of)

    def stage(self, work: ClassifiedBatch) -> None:
        super().stage(work)
        requests: Requests = work.staged
        DiskStore.stage(self, requests.owned)

    def await_rows(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        self._make_ready(requests.owned)

    def _ready(self, work: ClassifiedBatch) -> None:
        requests: Requests = work.staged
        DiskStore.take(self, requests.owned)

    def shards(self, snapshot: DiskSnapshot) -> Iterator[dict[str, NDArray[Any]]]:
        for shard in super().shards(snapshot):
            yield {**shard, ROW: self.ownership.joint_rows(shard[ROW])}
