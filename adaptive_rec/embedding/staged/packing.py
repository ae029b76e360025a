"""Arrays of several kinds packed into one slot of staging memory, so that one copy carries them all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.optimizer import ROW_TYPES
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event
from adaptive_rec.kernels.rows16 import PATTERNS

ALIGNMENT = 256
"""Alignment of arrays in bytes: it suits a GPU's memory transactions and every component type."""

INT32 = torch.int32
_TORCH_DTYPE = {
    str(t).removeprefix("torch."): t for t in (torch.int8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
}
NUMPY_TYPES = {dtype: np.dtype(name) for name, dtype in _TORCH_DTYPE.items()}
NUMPY_TYPES |= {torch_type: PATTERNS[name] for name, torch_type in ROW_TYPES.items()}


@dataclass(slots=True)
class PackedArray:
    """An array's place in a slot, the same in pinned memory and on the device."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def pinned(self, slot: Slot) -> NDArray[Any]:
        """The array in host memory; rows of 16 bits as bit patterns."""
        flat = slot.bytes_pinned[self.start : self.stop].view(NUMPY_TYPES[self.dtype])
        return flat if len(self.shape) == 1 else flat.reshape(self.shape)

    def device(self, slot: Slot) -> Tensor:
        """The array on the device."""
        start, (lines, *widths) = self.start // self.dtype.itemsize, self.shape
        if not widths:
            return slot.device_as(self.dtype)[start : start + lines]
        if widths == [0]:
            return slot.device_as(self.dtype)[:0].view(self.shape)
        return slot.device_lines(self.dtype, widths[0], start, lines)


@dataclass(slots=True)
class PackedNumbers:
    """Places of arrays of whole numbers (int32), one after the other, in a slot."""

    starts: list[int]
    """Counted in numbers."""
    lengths: list[int]

    def pinned(self, slot: Slot) -> list[NDArray[np.int32]]:
        """The arrays in host memory."""
        numbers = slot.bytes_pinned.view(np.int32)
        return [numbers[start : start + length] for start, length in zip(self.starts, self.lengths, strict=True)]

    def device(self, slot: Slot, last: int | None = None) -> list[Tensor]:
        """The arrays on the device. `last`: the length of the last one, where it is shorter than its room."""
        memory, lengths = slot.device_as(INT32), [*self.lengths[:-1], self.lengths[-1] if last is None else last]
        return [memory[start : start + length] for start, length in zip(self.starts, lengths, strict=True)]


class SlotLayout:
    """Places arrays one after the other."""

    def __init__(self) -> None:
        self.nbytes = 0

    def align(self) -> int:
        """Return the start of the next array."""
        self.nbytes = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        return self.nbytes

    def add(self, dtype: torch.dtype, *shape: int) -> PackedArray:
        """`shape`: a length, or lines and their width."""
        start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = start + math.prod(shape) * dtype.itemsize
        return PackedArray(start, self.nbytes, shape, dtype)

    def add_numbers(self, lengths: list[int]) -> PackedNumbers:
        """Place arrays of whole numbers."""
        itemsize, starts = INT32.itemsize, list[int]()
        for length in lengths:
            start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
            starts += [start // itemsize]
            self.nbytes = start + length * itemsize
        return PackedNumbers(starts, lengths)


@dataclass(frozen=True)
class Parcel:
    """A few arrays sent to the device together, for one use."""

    slot: Slot
    here: Event
    """The arrays have arrived."""
    nbytes: int
    arrays: list[Tensor]
    """On the device."""


def send(ring: StagingRing, arrays: list[NDArray[Any]]) -> Parcel:
    """Copy arrays to the device. The caller waits for `here`, and releases the slot when their use is queued."""
    layout = SlotLayout()
    parts = [layout.add(_TORCH_DTYPE[array.dtype.name], *array.shape) for array in arrays]
    slot = ring.take(layout.nbytes)
    for part, array in zip(parts, arrays, strict=True):
        part.pinned(slot)[...] = array
    return Parcel(slot, slot.upload(0, layout.nbytes), layout.nbytes, [part.device(slot) for part in parts])
