"""A group of processes (ranks) that train together, and the few operations that they use. A run of one process is alone.

All ranks call the same operations in the same order, except that each channel (`fork`) has an order of its own. Every wait has a
deadline: a rank that ends or hangs ends the group.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.system.group_meter import GroupMeter

Bytes = NDArray[np.uint8]

SIZE = np.dtype("<u4")
"""Type of numbers of things that ranks request."""


class Group(ABC):
    """The ranks of a run, seen from one of them."""

    def __init__(self, rank: int, ranks: int, meter: GroupMeter | None = None) -> None:
        """`meter`: that of the other channels, for a channel beside them."""
        self.rank = rank
        self.ranks = ranks
        self.meter = meter or GroupMeter()
        """Bytes that this rank sends with `exchange` and `add`, and how long it waits in all operations."""

    # What a subclass does ----------------------------------------------------------------------------------------------

    @abstractmethod
    def fork(self) -> Group:
        """Return another channel between the same ranks, for use by another thread. Every rank must call it."""

    @abstractmethod
    def _add(self, array: NDArray[Any]) -> None:
        """Add up an array over all ranks, in place. Every rank gets the same bits."""

    def _add_later(self, array: NDArray[Any]) -> Callable[[], object]:
        """Start to add up an array, and return what waits for the sums."""
        return lambda: self._add(array)

    @abstractmethod
    def _all_to_all(self, data: Bytes, sent_W: list[int], received_W: list[int]) -> Bytes:
        """Send the parts of `data` to the ranks, and return what they sent here, rank after rank."""

    @abstractmethod
    def _all_gather(self, data: Bytes) -> list[Bytes]:
        """Return the `data` of every rank; all have the same length."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""

    # What the runtime calls --------------------------------------------------------------------------------------------

    def add(self, kind: str, array: NDArray[Any]) -> None:
        """Add up an array over all ranks, in place. Every rank gets the same bits. Its bytes are estimated as those of a
        ring, in which each of W ranks sends a W-th of the array to the next one, 2 (W - 1) times."""
        self.add_later(kind, array)()

    def add_later(self, kind: str, array: NDArray[Any]) -> Callable[[], None]:
        """Start to add up an array as `add` does. Returns a function that waits for the sums; until then the array must stay as
        it is."""
        self.meter.sent_bytes[kind] += 2 * (self.ranks - 1) * array.nbytes // self.ranks
        wait = self._add_later(array)

        def finish() -> None:
            with self.meter.waiting():
                wait()

        return finish

    def exchange(
        self, kind: str, lines: NDArray[Any], sent_W: NDArray[np.int64], received_W: NDArray[np.int64]
    ) -> NDArray[Any]:
        """Send lines to the ranks, the first `sent_W[0]` of them to rank 0 and so on. Returns the lines that were sent here,
        rank after rank."""
        line_bytes = lines.itemsize * int(np.prod(lines.shape[1:], dtype=np.int64))
        data = np.ascontiguousarray(lines).reshape(-1).view(np.uint8)
        self.meter.sent_bytes[kind] += line_bytes * int(sent_W.sum() - sent_W[self.rank])
        with self.meter.waiting():
            found = self._all_to_all(data, (sent_W * line_bytes).tolist(), (received_W * line_bytes).tolist())
        return found.view(lines.dtype).reshape(int(received_W.sum()), *lines.shape[1:])

    def exchange_sizes(self, sizes_W: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tell each rank its line of some sizes, how much it will get. Returns what the ranks will send here."""
        each_W = np.ones(self.ranks, dtype=np.int64)
        return self.exchange("requests", sizes_W.astype(SIZE), each_W, each_W).astype(np.int64)

    def exchange_together(
        self, kind: str, arrays: Sequence[NDArray[Any]], sent_WK: NDArray[np.int64], received_WK: NDArray[np.int64]
    ) -> list[NDArray[Any]]:
        """Send parts of several arrays (K of them) as `exchange` does, in one message to each rank."""
        size_K = np.array([array.itemsize for array in arrays])
        end_WK = np.cumsum(sent_WK, axis=0)
        parts = [
            array[end - count : end].view(np.uint8)
            for end_K, count_K in zip(end_WK.tolist(), sent_WK.tolist(), strict=True)
            for array, end, count in zip(arrays, end_K, count_K, strict=True)
        ]
        found = self.exchange(kind, np.concatenate(parts), sent_WK @ size_K, received_WK @ size_K)
        pieces = np.split(found, np.cumsum(received_WK * size_K)[:-1])
        return [
            np.concatenate(pieces[k :: len(arrays)]).view(array.dtype) for k, array in enumerate(arrays)
        ]

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every rank's values, one line for each rank."""
        with self.meter.waiting():
            found = self._all_gather(np.ascontiguousarray(values).view(np.uint8))
        return np.stack([part.view(np.int64) for part in found])

    def share(self, value: Any) -> list[Any]:
        """Return every rank's value, which must have a JSON form."""
        text = json.dumps(value).encode()
        longest = int(self.gather(np.array([len(text)])).max())
        with self.meter.waiting():
            found = self._all_gather(np.frombuffer(text.ljust(longest), np.uint8).copy())
        return [json.loads(part.tobytes()) for part in found]

    def tell(self, value: Any = None) -> Any:
        """Return the value of rank 0, which must have a JSON form."""
        return self.share(value if self.rank == 0 else None)[0]

    def total(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sums of values over all ranks."""
        summed = values.copy()
        self.add("counts", summed)
        return summed

    def totals(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the sums of named counts over all ranks."""
        values = self.total(np.array(list(counts.values()), dtype=np.int64))
        return dict(zip(counts, values.tolist(), strict=True))

    def everyone(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values (N, ...) of all ranks, rank after rank; ranks may have different numbers of them."""
        lengths_W = self.gather(np.array([len(values)]))[:, 0]
        repeated = np.concatenate([values] * self.ranks)
        return self.exchange("values", repeated, np.full(self.ranks, len(values)), lengths_W)

    def all_true(self, value: bool) -> bool:
        """Return whether the value is true on every rank."""
        return bool(self.gather(np.array([value], np.int64)).all())

    def any_true(self, value: bool) -> bool:
        """Return whether the value is true on some rank."""
        return bool(self.gather(np.array([value], np.int64)).any())

    @property
    def is_alone(self) -> bool:
        """Whether this process trains without others."""
        return self.ranks == 1

    def part_of(self, samples: int) -> slice:
        """Return the samples of a batch of this size that this rank trains."""
        return part_of(samples, self.rank, self.ranks)


def part_of(samples: int, rank: int, ranks: int) -> slice:
    """Return the samples of a batch of this size that a rank trains."""
    return slice(samples * rank // ranks, samples * (rank + 1) // ranks)


class Alone(Group):
    """The group of a process that trains by itself: every operation returns what it is given."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def fork(self) -> Alone:
        return self

    def _add(self, array: NDArray[Any]) -> None: ...

    def total(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def everyone(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return values[None]

    def share(self, value: Any) -> list[Any]:
        return [value]

    def close(self) -> None: ...

    def _all_to_all(self, data: Bytes, sent_W: list[int], received_W: list[int]) -> Bytes:
        return data

    def _all_gather(self, data: Bytes) -> list[Bytes]:
        return [data]


ALONE = Alone()
