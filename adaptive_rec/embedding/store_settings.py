"""What a store is built for: where its rows lie, on what it computes, with whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.system.group import Group

if TYPE_CHECKING:
    from adaptive_rec.embedding.staged.streams import Streams


@dataclass(frozen=True)
class OnDisk:
    """Cold rows lie on a disk."""

    folder: Path
    """A folder that exists."""
    memory_bytes: int = 0
    """Limit of the cold rows of a device run that are in host memory."""


@dataclass(frozen=True)
class OnDevice:
    """Hot rows are on a device."""

    streams: Streams
    copy_threads: int = 1
    classifies: bool = False
    """Whether the device classifies batches."""
    cold_rows: str = "staged"
    """How cold rows in host memory get to the device: staged, direct, auto (`staged/direct_rows.py`), or in_place."""


@dataclass(frozen=True)
class AmongRanks:
    """Several processes train together."""

    group: Group
    rounded: bool = False
    """Whether vectors and gradients travel in bfloat16."""
    home_T: tuple[int, ...] = ()
    """`Ownership.home_T`."""
