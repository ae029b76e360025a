"""What a run shows to other processes: one block of shared memory, written by the training thread, read by anyone.

Nobody waits for anybody: the writer never looks at its readers. Whatever is longer than a word stands behind a sequence number
that is odd while it changes (a seqlock); a reader that finds it odd, or changed under its hands, reads again. Stores
have to be seen in order for that, as they are on x86.
Tables and the placement in use stay in private memory; here are copies, brought up to date when a window ends.
"""

from __future__ import annotations

import json
import math
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import AdaptiveRecError

T = TypeVar("T")
Layout = Mapping[str, Any]
"""Name -> [dtype, shape, offset in bytes] of every array in the block."""

SKETCH_DEPTH_LIMIT = 16
CHANGES_KEPT = 1 << 17
"""Changes of class that the ring remembers."""
CLASSES = ("cold", "hot", "stale")
HOT = 1
WORDS = (
    "board_number", "board_bytes", "pulse_step", "placement_number", "version", "step", "changes", "sketch_unit", "sketch_depth",
    "sketch_width",
)  # fmt: skip


class StateBusy(AdaptiveRecError):
    """The placement kept changing for as long as the reader was willing to wait."""


def plan_layout(pool_rows: Sequence[int], sketch_cells: int, board_limit_bytes: int) -> dict[str, Any]:
    """Place every array. Each pool may come to have as many slots as rows, the sketch so many cells; memory is taken where
    something is written, or read, only."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {
        "words": ("int64", (len(WORDS),)),
        "pulse_seconds": ("float64", (1,)),
        "board": ("uint8", (board_limit_bytes,)),
        "capacities": ("int64", (len(pool_rows),)),
        "slots_plus_one": ("int32", (sum(pool_rows),)),
        "sketch_cells": ("uint32", (sketch_cells,)),
        "sketch_seeds": ("uint64", (SKETCH_DEPTH_LIMIT,)),
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
    """The published placement as a reader sees it: views, valid only while they are being read by `StateReader.placement`."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self.slots_plus_one: NDArray[np.int32] = arrays["slots_plus_one"]
        """For each row of the joint row space: 0 where it is cold, else its slot in the row's pool, plus one."""

    @property
    def version(self) -> int:
        return self._word("version")

    @property
    def step(self) -> int:
        """The step at which this was published."""
        return self._word("step")

    @property
    def sketch_unit(self) -> int:
        """What one lookup adds to a cell; 0 while nothing has been counted."""
        return self._word("sketch_unit")

    @property
    def sketch_counters(self) -> NDArray[np.uint32]:
        depth, width = self._word("sketch_depth"), self._word("sketch_width")
        return self._arrays["sketch_cells"][: depth * width].reshape(depth, width)

    @property
    def sketch_seeds(self) -> NDArray[np.uint64]:
        return self._arrays["sketch_seeds"][: self._word("sketch_depth")]

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
        """Lookups remembered of each slot's row when the last window ended."""
        return self._tiers("estimate")

    @property
    def movement(self) -> list[NDArray[np.float32]]:
        """How far each slot's row moved when that was last judged; inf where it is not known."""
        return self._tiers("movement")

    def last_change(self, row: int) -> dict[str, Any] | None:
        """The last change of a row's class, where the ring still has it."""
        found = np.flatnonzero(self._arrays["change_row"] == row)
        written = self._word("changes")
        found = found[found < written]
        if not len(found):
            return None
        newest = found[np.argmax((found - written) % CHANGES_KEPT)]
        old, new = divmod(int(self._arrays["change_kind"][newest]), len(CLASSES))
        return {"step": int(self._arrays["change_step"][newest]), "from": CLASSES[old], "to": CLASSES[new]}

    def _word(self, name: str) -> int:
        return int(self._arrays["words"][WORDS.index(name)])

    def _tiers(self, name: str) -> list[NDArray[Any]]:
        return [self._arrays[f"{name}.{pool}"][:slots] for pool, slots in enumerate(self.capacities)]


class StateReader:
    """The other end: reads the block behind `fd`, in the same or another process."""

    def __init__(self, fd: int, layout: Layout) -> None:
        self._arrays = view(fd, layout, mmap.ACCESS_READ)

    def pulse(self) -> tuple[int, float]:
        """The last finished step, and when that was (seconds since the epoch)."""
        return self._word("pulse_step"), float(self._arrays["pulse_seconds"][0])

    def board_version(self) -> int:
        """A number that grows with each new board."""
        return self._word("board_number")

    def board(self) -> dict[str, Any]:
        """The newest small state; empty before the first."""

        def read() -> dict[str, Any]:
            text = self._arrays["board"][: self._word("board_bytes")].tobytes()
            return dict(json.loads(text)) if text else {}

        return self._steady("board_number", read, deadline_seconds=1.0)

    def placement(self, read: Callable[[PlacementArrays], T], deadline_seconds: float = 1.0) -> T:
        """What `read` makes of the placement. It must copy what it keeps, and may be called more than once."""
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
