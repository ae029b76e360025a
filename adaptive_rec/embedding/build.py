"""Builds a store of its parts. Only those that it has are imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule, rules_of_pools
from adaptive_rec.embedding.path.row_path import RowPath
from adaptive_rec.embedding.peers.peers import Peers
from adaptive_rec.embedding.row_types import NUMPY_DTYPE
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.store_settings import AmongRanks, OnDevice, OnDisk
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import ALONE, Group

if TYPE_CHECKING:
    from adaptive_rec.embedding.peers.transport import Transport

_CPU = torch.device("cpu")


def build(
    space: RowSpace, rule: RowRule | Sequence[RowRule], seed: int, dtype: torch.dtype, budget_bytes: int, monitored: bool,
    drawn: bool = True, *, disk: OnDisk | None = None, device: OnDevice | None = None, ranks: AmongRanks | None = None,
    dice: int = 0,
) -> EmbeddingStore:  # fmt: skip
    """Build a store whose hot rows take at most `budget_bytes`.

    `space`: the rows of all ranks; `rule`: update rule of rows, or of those of each pool; `monitored`: whether the tier records
    how far hot rows move; without `drawn` rows in memory are zeros, for a caller to set. `dice`: a number of each caller, where
    several have shared rows out: those of 16 bits are rounded by dice of its own. Raises ConfigError where memory cannot be
    locked.
    """
    group: Group = ALONE
    first, ownership = FreshRows(seed, space.tables), None
    rounding_seed = seed + dice
    if ranks is not None:
        from adaptive_rec.embedding.peers.ownership import Ownership

        group = ranks.group
        ownership = Ownership(space, group.ranks, group.rank, home_T=ranks.home_T)
        first = FreshRows(seed, space.tables, ownership.ids_of)
        rounding_seed = seed + group.rank  # rows of two ranks may have one number, and must not share their dice
    index = RowIndex(space if ownership is None else ownership.own)
    rules = rules_of_pools(rule, len(index.space.pools))
    parts = _StoreParts(index, rules, rounding_seed, dtype, monitored, budget_bytes, first, drawn, group)
    hot, cold, path = parts.on_cpu(disk) if device is None else parts.on_device(disk, device)
    if ranks is None or ownership is None:
        return EmbeddingStore(index, rules, seed, hot, cold, Peers(index, hot, path))
    from adaptive_rec.embedding.peers.rank_peers import RankPeers

    transport = parts.host_transport(space, path) if device is None else parts.device_transport(space, path, device)
    peers = RankPeers(index, hot, path, group, ownership, transport, ranks.rounded)
    return EmbeddingStore(index, rules, seed, hot, cold, peers)


@dataclass(frozen=True)
class _StoreParts:
    """Makes the parts of a store of one rank's rows."""

    index: RowIndex
    rules: Sequence[RowRule]
    seed: int
    dtype: torch.dtype
    monitored: bool
    budget_bytes: int
    first: FreshRows
    drawn: bool
    group: Group

    def on_cpu(self, disk: OnDisk | None) -> tuple[HotRows, ColdHome, RowPath]:
        common = self.index, self.rules
        if disk is None:
            from adaptive_rec.embedding.cold.memory import InMemory
            from adaptive_rec.embedding.path.cpu import CpuPath

            cold = InMemory(*common, NUMPY_DTYPE[self.dtype], self.first if self.drawn else None)
            hot = self._filled(HotRows(*common, self.dtype, _CPU, self.monitored))
            return hot, cold, CpuPath(*common, hot, cold, self.seed)
        from adaptive_rec.embedding.cold.lazy_hot import LazyHotRows
        from adaptive_rec.embedding.cold.log import OnLog
        from adaptive_rec.embedding.path.read_ahead import ReadAheadPath

        log = OnLog(*common, NUMPY_DTYPE[self.dtype], self.first, disk.folder, self.group)
        lazy = LazyHotRows(*common, self.dtype, _CPU, self.monitored)
        self._filled(lazy)
        return lazy, log, ReadAheadPath(*common, lazy, log, self.seed)

    def on_device(self, disk: OnDisk | None, device: OnDevice) -> tuple[HotRows, ColdHome, RowPath]:
        from adaptive_rec.embedding.staged.build import make_cold, make_path
        from adaptive_rec.embedding.staged.device_hot import DeviceHotRows
        from adaptive_rec.system.crew import Crew

        crew, common = Crew(device.copy_threads), (self.index, self.rules)
        cold = make_cold(*common, NUMPY_DTYPE[self.dtype], self.first, crew, disk, self.group, self.drawn)
        hot = DeviceHotRows(*common, self.dtype, device.streams, self.monitored)
        self._filled(hot)
        return hot, cold, make_path(*common, hot, cold, self.seed, crew, device)

    def host_transport(self, space: RowSpace, path: RowPath) -> Transport:
        from adaptive_rec.embedding.path.cpu import CpuPath
        from adaptive_rec.embedding.peers.host_transport import HostTransport

        assert isinstance(path, CpuPath), "rows of ranks without devices are gathered by their CPUs"
        return HostTransport(self.group, space, self.index, path, self.dtype)

    def device_transport(self, space: RowSpace, path: RowPath, device: OnDevice) -> Transport:
        from adaptive_rec.embedding.peers.device_lines import DeviceLines
        from adaptive_rec.embedding.peers.device_transport import DeviceTransport
        from adaptive_rec.embedding.staged.path import StagedPath

        assert isinstance(path, StagedPath), "rows of ranks with devices are staged"
        lines = DeviceLines(space, device.streams, self.dtype)
        path.add_rings(lines.rings)
        return DeviceTransport(self.index, path, lines, device.streams.link(self.group), self.dtype)

    def _filled(self, hot: HotRows) -> HotRows:
        """Give a tier its slots."""
        hot.replace(split_budget(self.index.space, hot.row_bytes(), self.budget_bytes))
        return hot
