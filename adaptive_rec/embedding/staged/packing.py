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

_ALIGNMENT = 256
"""Alignment of arrays in bytes: it suits a GPU's memory transactions and every component type."""

INT32 = torch.int32
_TORCH_DTYPE = {
    str(t).removeprefix("torch."): t for t in (torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
}
NUMPY_TYPES = {dtype: np.dtype(name) for name, dtype in _TORCH_DTYPE.items()}
NUMPY_TYPES |= {torch_type: PATTERNS[name] for name, torch_type in ROW_TYPES.items()}


@dataclass(frozen=True)
class PackedArray:
    """An array's place in a slot, the same in pinned memory and on the device."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def pinned(self, slot: Slot) -> NDArray[Any]:
        """The array in host memory; rows of 16 bits as bit patterns."""
        return slot.bytes_pinned[self.start : self.stop].view(NUMPY_TYPES[self.dtype]).reshape(self.shape)

    def device(self, slot: Slot) -> Tensor:
        """The array on the device."""
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return slot.device_as(self.dtype).as_strided(self.shape, strides, self.start // self.dtype.itemsize)


class SlotLayout:
    """Places arrays one after the other."""

    def __init__(self) -> None:
        self.nbytes = 0

    def align(self) -> int:
        """Return the start of the next array."""
        self.nbytes = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
        return self.nbytes

    def add(self, dtype: torch.dtype, *shape: int) -> PackedArray:
        part = PackedArray(self.align(), shape, dtype)
        self.nbytes = part.stop
        return part


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
