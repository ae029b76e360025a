"""The state that a run publishes: one block of shared memory, written by the training thread and read by other processes.

The writer never waits for its readers. Everything longer than a word has a sequence number that is odd while it changes (a
seqlock); a reader that finds the number odd, or changed after reading, reads again. This needs stores to become visible in
order, as they do on x86.
The tables and the placement in use stay in private memory; the block holds copies, updated when a window ends.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from adaptive_rec.errors import AdaptiveRecError

T = TypeVar("T")
Layout = Mapping[str, Any]
"""Name -> [dtype, shape, offset in bytes] of every array in the block."""

CHANGES_KEPT = 1 << 17
"""Number of class changes that the ring keeps."""
CLASSES = ("cold", "hot", "stale")
HOT = 1
WORDS = (
    "board_number", "board_bytes", "pulse_step", "placement_number", "version", "step", "changes", "sketch_unit", "sketch_blocks",
    "sketch_block_cells",
)  # fmt: skip


class StateBusy(AdaptiveRecError):
    """The placement kept changing until the reader's deadline."""


def plan_layout(
    pool_rows: Sequence[int], sketch_cells: int, board_limit_bytes: int, on_disk: bool, in_memory: bool
) -> dict[str, Any]:
    """Return the place of every array in the block. Each pool may grow to as many slots as it has rows, and the sketch to
    `sketch_cells`; the system takes memory only for the parts that are used. `on_disk`: whether cold rows lie on a disk;
    `in_memory`: whether others of them are in host memory."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {
        "words": ("int64", (len(WORDS),)),
        "pulse_seconds": ("float64", (1,)),
        "board": ("uint8", (board_limit_bytes,)),
        "capacities": ("int64", (len(pool_rows),)),
        "address": ("uint32", (sum(pool_rows) if on_disk else 0,)),
        "memory_slot": ("int32", (sum(pool_rows) if in_memory else 0,)),
        "slots_plus_one": ("int32", (sum(pool_rows),)),
        "sketch_cells": ("uint32", (sketch_cells,)),
        "sketch_seeds": ("uint64", (1,)),
        "change_row": ("int64", (CHANGES_KEPT,)),
        "change_step": ("int64", (CHANGES_KEPT,)),
        "change_kind": ("uint8", (CHANGES_KEPT,)),
    }
    for pool, rows in enumerate(pool_rows):
        arrays[f"row_of_slot.{pool}"] = ("int64", (rows,))
        arrays[f"stale.{pool}"] = ("bool", (rows,))
        arrays[f"estimate.{pool}"] = ("float32", (rows,))
        arrays[f"movement.{pool}"] = ("float32", (rows,))
    layout, offset = {}, 0
    for name, (dtype, shape) in arrays.items():
        layout[name] = [dtype, list(shape), offset]
        offset += -(-np.dtype(dtype).itemsize * math.prod(shape) // 64) * 64
    return layout


def block_bytes(layout: Layout) -> int:
    """Length of the block."""
    dtype, shape, offset = max(layout.values(), key=lambda entry: int(entry[2]))
    return max(int(offset) + int(np.dtype(dtype).itemsize) * math.prod(shape), 1)


def view(fd: int, layout: Layout, access: int) -> dict[str, NDArray[Any]]:
    block = mmap.mmap(fd, block_bytes(layout), access=access)
    return {
        name: np.frombuffer(block, dtype, math.prod(shape), offset).reshape(shape)
        for name, (dtype, shape, offset) in layout.items()
    }


class PlacementArrays:
    """Views of the published placement. They are valid only inside the function given to `StateReader.placement`."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self.slots_plus_one: NDArray[np.int32] = arrays["slots_plus_one"]
        """For each row of the joint row space: 0 where it is cold, else its slot in the row's pool, plus one."""
        self.address: NDArray[np.uint32] = arrays["address"]
        """For each row of the joint row space its address on the disk, as it is right now; 0 where it was never written. Empty
        where all rows are in memory."""
        self.memory_slot: NDArray[np.int32] = arrays["memory_slot"]
        """For each row of the joint row space its slot in host memory, as it is right now; -1 where it has none. Empty unless
        some cold rows are in host memory and others on a disk."""

    @property
    def version(self) -> int:
        return self._word("version")

    @property
    def step(self) -> int:
        """The step at which this was published."""
        return self._word("step")

    @property
    def sketch_unit(self) -> int:
        """The amount that one lookup adds to a cell; 0 before the first count."""
        return self._word("sketch_unit")

    @property
    def sketch_counters(self) -> NDArray[np.uint32]:
        """The blocks of the sketch; lines, where a checkpoint of an older version has them."""
        blocks, cells = self._word("sketch_blocks"), self._word("sketch_block_cells")
        return self._arrays["sketch_cells"][: blocks * cells].reshape(blocks, cells)

    @property
    def sketch_seeds(self) -> NDArray[np.uint64]:
        """One seed, or one for each line."""
        return self._arrays["sketch_seeds"]

    @property
    def capacities(self) -> list[int]:
        """Slots of each pool."""
        return [int(slots) for slots in self._arrays["capacities"]]

    @property
    def row_of_slot(self) -> list[NDArray[np.int64]]:
        """For each pool, the joint row of each slot, -1 where it is free."""
        return self._tiers("row_of_slot")

    @property
    def stale(self) -> list[NDArray[np.bool_]]:
        return self._tiers("stale")

    @property
    def estimate(self) -> list[NDArray[np.float32]]:
        """Estimated lookups of each slot's row when the last window ended."""
        return self._tiers("estimate")

    @property
    def movement(self) -> list[NDArray[np.float32]]:
        """Last measured movement of each slot's row; inf if it is not known."""
        return self._tiers("movement")

    def changes_of(self, row: int, most: int) -> list[dict[str, Any]]:
        """Return the newest changes of a row's class, the newest first, as far as the ring holds them."""
        found = np.flatnonzero(self._arrays["change_row"] == row)
        written = self._word("changes")
        found = found[found < written]
        newest_first = found[np.argsort(-((found - written) % CHANGES_KEPT))][:most]
        kinds, steps = self._arrays["change_kind"][newest_first].tolist(), self._arrays["change_step"][newest_first].tolist()
        classes = [divmod(kind, len(CLASSES)) for kind in kinds]
        return [
            {"step": step, "from": CLASSES[old], "to": CLASSES[new]}
            for step, (old, new) in zip(steps, classes, strict=True)
        ]

    def _word(self, name: str) -> int:
        return int(self._arrays["words"][WORDS.index(name)])

    def _tiers(self, name: str) -> list[NDArray[Any]]:
        return [self._arrays[f"{name}.{pool}"][:slots] for pool, slots in enumerate(self.capacities)]


class StateReader:
    """Reads the block behind `fd`, in the same process or another one."""

    def __init__(self, fd: int, layout: Layout) -> None:
        self._arrays = view(fd, layout, mmap.ACCESS_READ)

    def pulse(self) -> tuple[int, float]:
        """Return the last finished step and its time, on the monotonic clock, which is one for all processes of a machine."""
        return self._word("pulse_step"), float(self._arrays["pulse_seconds"][0])

    def board_version(self) -> int:
        """Return a number that grows with each new board."""
        return self._word("board_number")

    def placement_version(self) -> int:
        """Return a number that grows with each new placement, and while it is written."""
        return self._word("placement_number")

    def board(self) -> dict[str, Any]:
        """Return the newest board; it is empty before the first write."""

        def read() -> dict[str, Any]:
            text = self._arrays["board"][: self._word("board_bytes")].tobytes()
            return dict(from_json(text)) if text else {}

        return self._steady("board_number", read, deadline_seconds=1.0)

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float = 1.0) -> T:
        """Return what `read` returns for the placement. `read` must copy what it keeps, and may be called more than once."""
        arrays = PlacementArrays(self._arrays)
        return self._steady("placement_number", lambda: read(arrays), deadline_seconds)

    def _steady(self, number: str, read: Callable[[], T], deadline_seconds: float) -> T:
        end = time.monotonic() + deadline_seconds
        while True:
            before = self._word(number)
            if before % 2 == 0:
                try:
                    result = read()
                except Exception:  # half-written state may look like anything
                    if self._word(number) == before:
                        raise
                else:
                    if self._word(number) == before:
                        return result
            if time.monotonic() >= end:
                raise StateBusy(f"{number.split('_')[0]} must hold still to be read, changed for {deadline_seconds} s")
            time.sleep(0.001)

    def _word(self, name: str) -> int:
        return int(self._arrays["words"][WORDS.index(name)])
