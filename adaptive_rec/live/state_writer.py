"""Writes the shared state from the training thread. `shared_state.py` defines its layout."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.live.shared_state import CHANGES_KEPT, CLASSES, HOT, WORDS, block_bytes, plan_layout, view

Sketch = tuple[NDArray[np.uint32], NDArray[np.uint64], int]
"""Counters, seeds, and the amount that one lookup adds to a cell."""


def _open_block(size_bytes: int) -> int:
    """Open a file without a name, in memory if the system can, so that nothing remains after the process."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("adaptive-rec-state")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size_bytes)
    return fd


@dataclass(frozen=True)
class Tier:
    """The published arrays of one pool's slots. Suffix H: slots."""

    row_of_slot_H: NDArray[np.int64]
    stale_H: NDArray[np.bool_]
    estimate_H: NDArray[np.float32]
    movement_H: NDArray[np.float32]


class StateWriter:
    """Writes the shared block. A reader needs its `fd` and `layout`."""

    def __init__(
        self, pool_rows: Sequence[int], sketch_cells: int, tables: int, ranks: int = 1, on_disk: bool = False,
        in_memory: bool = False,
    ) -> None:  # fmt: skip
        """The last two are as in `plan_layout`."""
        self.layout = plan_layout(pool_rows, sketch_cells, (1 << 18) + 1024 * (tables + ranks), on_disk, in_memory)
        self.fd = _open_block(block_bytes(self.layout))
        self._arrays = view(self.fd, self.layout, mmap.ACCESS_WRITE)
        self._words = self._arrays["words"]

    def close(self) -> None:
        """Release the block. Readers that have it open can still read."""
        self._arrays = {}
        os.close(self.fd)

    @property
    def address_R(self) -> NDArray[np.uint32]:
        """The addresses of all rows on the disk, in the joint row space, for their owner to keep there; empty without a disk."""
        return self._arrays["address"]

    @property
    def memory_slot_R(self) -> NDArray[np.int32]:
        """The slots of all rows in host memory, in the joint row space, for their owner to keep there; empty where cold rows have
        one home."""
        return self._arrays["memory_slot"]

    def pulse(self, step: int) -> None:
        """Publish that a step is done. This is cheap enough for every step."""
        self._words[WORDS.index("pulse_step")] = step
        self._arrays["pulse_seconds"][0] = time.monotonic()

    def write_board(self, board: Mapping[str, Any]) -> None:
        """Replace the board, a small mapping of JSON values without infinities."""
        text = json.dumps(board, allow_nan=False).encode()
        limit = len(self._arrays["board"])
        if len(text) > limit:
            raise ValueError(f"a board must fit into {limit} bytes, got {len(text)}")
        with self._changing("board_number"):
            self._arrays["board"][: len(text)] = np.frombuffer(text, np.uint8)
            self._words[WORDS.index("board_bytes")] = len(text)

    def write_placement(
        self, step: int, version: int, slot_of_row: NDArray[np.int32], tiers: Sequence[Tier], sketch: Sketch | None
    ) -> None:
        """Update the copies of the placement, the classes and the sketch. None leaves the sketch as it is."""
        with self._changing("placement_number"):
            for pool, tier in enumerate(tiers):
                self._write_tier(pool, tier, slot_of_row, step)
            if sketch is not None:
                self._write_sketch(*sketch)
            self._words[WORDS.index("version")] = version
            self._words[WORDS.index("step")] = step

    def write_sketch(self, sketch: Sketch) -> None:
        """Update the copy of the sketch alone. It may be written after the placement of the same step."""
        with self._changing("placement_number"):
            self._write_sketch(*sketch)

    def _write_sketch(self, counters: NDArray[np.uint32], seeds: NDArray[np.uint64], unit: int) -> None:
        self._arrays["sketch_cells"][: counters.size] = counters.ravel()
        self._arrays["sketch_seeds"][:] = seeds
        for word, value in zip(("sketch_blocks", "sketch_block_cells"), counters.shape, strict=True):
            self._words[WORDS.index(word)] = value
        self._words[WORDS.index("sketch_unit")] = unit

    def _write_tier(self, pool: int, tier: Tier, slot_of_row: NDArray[np.int32], step: int) -> None:
        """Find what changed by comparing with the copy, and write it."""
        arrays, mirror = self._arrays, self._arrays["slots_plus_one"]
        before, slots = int(arrays["capacities"][pool]), len(tier.row_of_slot_H)
        old_H, was_stale_H = arrays[f"row_of_slot.{pool}"][:before], arrays[f"stale.{pool}"][:before]
        if before == slots:
            changed_H = np.flatnonzero((old_H != tier.row_of_slot_H) | (was_stale_H != tier.stale_H))
            old_H, was_stale_H = old_H[changed_H], was_stale_H[changed_H]
        else:
            changed_H = np.arange(slots)
        old, old_class = old_H[old_H >= 0], HOT + was_stale_H[old_H >= 0]
        slot = slot_of_row[old]
        old_now = np.zeros(len(old), dtype=np.int64)
        old_now[slot >= 0] = HOT + tier.stale_H[slot[slot >= 0]]
        self._remember(old, step, old_class, old_now)
        new_H = changed_H[tier.row_of_slot_H[changed_H] >= 0]
        new = tier.row_of_slot_H[new_H]
        came = mirror[new] == 0
        self._remember(new[came], step, np.zeros(int(came.sum()), dtype=np.int64), HOT + tier.stale_H[new_H[came]])
        mirror[old[slot < 0]] = 0
        mirror[new] = new_H + 1
        arrays["capacities"][pool] = slots
        arrays[f"row_of_slot.{pool}"][changed_H] = tier.row_of_slot_H[changed_H]
        arrays[f"stale.{pool}"][changed_H] = tier.stale_H[changed_H]
        arrays[f"estimate.{pool}"][:slots] = tier.estimate_H
        arrays[f"movement.{pool}"][:slots] = tier.movement_H

    def _remember(self, rows: NDArray[np.int64], step: int, old: NDArray[np.int64], new: NDArray[np.int64]) -> None:
        """Add the rows whose class changed to the ring, which keeps the last CHANGES_KEPT of them."""
        kept = np.flatnonzero(old != new)
        written, count = int(self._words[WORDS.index("changes")]), len(kept)
        kept = kept[-CHANGES_KEPT:]
        places = (written + count - len(kept) + np.arange(len(kept))) % CHANGES_KEPT
        self._arrays["change_row"][places] = rows[kept]
        self._arrays["change_step"][places] = step
        self._arrays["change_kind"][places] = old[kept] * len(CLASSES) + new[kept]
        self._words[WORDS.index("changes")] = written + count

    @contextmanager
    def _changing(self, number: str) -> Iterator[None]:
        place = WORDS.index(number)
        self._words[place] += 1
        try:
            yield
        finally:
            self._words[place] += 1
