"""The parts of a store whose hot rows are on a device."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import DTypeLike

from adaptive_rec.embedding.cold.copier import RowCopier
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged.device_hot import DeviceHotRows
from adaptive_rec.embedding.staged.direct_rows import direct_rows
from adaptive_rec.embedding.staged.in_place import DeviceInPlacePath
from adaptive_rec.embedding.staged.path import StagedPath
from adaptive_rec.embedding.store_settings import OnDevice, OnDisk
from adaptive_rec.system.crew import Crew
from adaptive_rec.system.group import Group


def make_cold(
    index: RowIndex, rules: Sequence[RowRule], dtype: DTypeLike, first: FreshRows, crew: Crew, disk: OnDisk | None, group: Group,
    drawn: bool,
) -> ColdHome:  # fmt: skip
    """Return the home of cold rows: host memory, or host memory before a disk."""
    copier = RowCopier(crew)
    if disk is None:
        return InMemory(index, rules, dtype, first if drawn else None, copier)
    from adaptive_rec.embedding.cold.cascade import Cascade

    return Cascade(index, rules, dtype, first, disk.folder, disk.memory_bytes, copier, group)


def make_path(
    index: RowIndex, rules: Sequence[RowRule], hot: DeviceHotRows, cold: ColdHome, seed: int, crew: Crew, device: OnDevice
) -> StagedPath:  # fmt: skip
    """Return the path of rows to a device and back. Raises ConfigError where memory cannot be locked."""
    parts = (index, rules, hot, cold, seed, device.streams, crew, device.classifies)
    if device.cold_rows == "in_place":
        return DeviceInPlacePath(*parts)
    direct, complaint = None, ""
    if isinstance(cold, InMemory):
        direct, complaint = direct_rows(device.cold_rows, index.space, rules[0], hot.dtype, device.streams, cold)
    return StagedPath(*parts, direct, complaint)
