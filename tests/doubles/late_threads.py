"""A group of threads of one process, each a rank, whose messages are late by a seed: what no order of arrival may change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import GroupError
from adaptive_rec.system.group import Bytes, Group
from adaptive_rec.system.group_meter import GroupMeter

T = TypeVar("T")

MOST_LATE_SECONDS = 0.002
WAIT_SECONDS = 60


class _Channel:
    """What the ranks post on one channel, operation by operation."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._posted: dict[int, dict[int, Any]] = {}
        self._read: dict[int, int] = {}
        self._changed = threading.Condition(threading.RLock())
        self.broken = False

    def swap(self, number: int, rank: int, value: Any) -> list[Any]:
        """Post a value for an operation and return those of all ranks, once they are there."""
        with self._changed:
            self.post(number, rank, value)
            whole = self._changed.wait_for(lambda: self.broken or self._is_whole(number), WAIT_SECONDS)
            if not whole:
                raise GroupError(self._silent(rank))
            return self.read(number, rank)

    def post(self, number: int, rank: int, value: Any) -> None:
        with self._changed:
            self._posted.setdefault(number, {})[rank] = value
            self._changed.notify_all()

    def is_whole(self, number: int, rank: int) -> bool:
        """Whether all ranks have posted their values for an operation, which `rank` has not read yet."""
        with self._changed:
            if self.broken:
                raise GroupError(self._silent(rank))
            return self._is_whole(number)

    def _is_whole(self, number: int) -> bool:
        return len(self._posted.get(number, ())) == self._ranks

    def _silent(self, rank: int) -> str:
        return f"all {self._ranks} ranks must answer, one did not (seen by rank {rank})"

    def read(self, number: int, rank: int) -> list[Any]:
        """Return the values of an operation that is whole. Each rank reads them once."""
        with self._changed:
            if self.broken:
                raise GroupError(self._silent(rank))
            found = [self._posted[number][each] for each in range(self._ranks)]
            self._read[number] = self._read.get(number, 0) + 1
            if self._read[number] == self._ranks:
                del self._posted[number], self._read[number]
            return found

    def break_off(self) -> None:
        with self._changed:
            self.broken = True
            self._changed.notify_all()


class _Channels:
    """The channels of a group, by the order in which they were forked."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._known: dict[tuple[int, ...], _Channel] = {}
        self._lock = threading.Lock()

    def at(self, key: tuple[int, ...]) -> _Channel:
        with self._lock:
            return self._known.setdefault(key, _Channel(self._ranks))

    def break_off(self) -> None:
        with self._lock:
            for channel in self._known.values():
                channel.break_off()


class LateOperation:
    """An operation of all ranks that none of them waits for: a device is to post to it and to read from it."""

    def __init__(self, channel: _Channel, number: int, rank: int) -> None:
        self._channel, self._number, self._rank = channel, number, rank
        self._read = False

    def post(self, value: Any) -> None:
        self._channel.post(self._number, self._rank, value)

    @property
    def done(self) -> bool:
        """Whether all ranks have posted. Raises GroupError where one of them has failed."""
        return self._read or self._channel.is_whole(self._number, self._rank)

    def read(self) -> list[Any]:
        """Return what the ranks have posted."""
        self._read = True
        return self._channel.read(self._number, self._rank)


class LateThreads(Group):
    """A rank that is a thread."""

    def __init__(
        self, channels: _Channels, rank: int, ranks: int, seed: int, key: tuple[int, ...] = (),
        meter: GroupMeter | None = None,
    ) -> None:  # fmt: skip
        super().__init__(rank, ranks, meter)
        self._channels, self._key, self._seed = channels, key, seed
        self._channel = channels.at(key)
        self._operations = self._forks = 0
        self._late = np.random.default_rng([seed, rank, *key])

    @staticmethod
    def train(ranks: int, work: Callable[[Group], T], seed: int = 0) -> list[T]:
        """Do work on every rank, and return what each rank made of it. An error of one rank ends all; it is raised."""
        channels = _Channels(ranks)

        def alone(rank: int) -> T:
            try:
                return work(LateThreads(channels, rank, ranks, seed))
            except BaseException:
                channels.break_off()
                raise

        with ThreadPoolExecutor(ranks) as threads:
            running = [threads.submit(alone, rank) for rank in range(ranks)]
        errors = [each.exception() for each in running if each.exception() is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, GroupError)):
            assert error is not None
            raise error
        return [each.result() for each in running]

    def fork(self) -> LateThreads:
        self._forks += 1
        key = (*self._key, self._forks)
        return LateThreads(self._channels, self.rank, self.ranks, self._seed, key, self.meter)

    def meet(self, value: T) -> list[T]:
        """Return the object that each rank gives."""
        return self._swap(value)

    def operation(self) -> LateOperation:
        """Return the next operation of this channel."""
        self._operations += 1
        return LateOperation(self._channel, self._operations, self.rank)

    def _add(self, array: NDArray[Any]) -> None:
        first, *others = self._swap(array.copy())
        array[:] = first
        for other in others:
            array += other

    def _all_to_all(self, data: Bytes, sent_W: list[int], received_W: list[int]) -> Bytes:
        parts = np.split(data.copy(), np.cumsum(sent_W)[:-1])
        found = [each[self.rank] for each in self._swap(parts)]
        assert [len(part) for part in found] == received_W, "ranks must agree on what they send"
        return np.concatenate(found)

    def _all_gather(self, data: Bytes) -> list[Bytes]:
        return self._swap(data.copy())

    def close(self) -> None: ...

    def _swap(self, value: Any) -> list[Any]:
        time.sleep(self._late.random() * MOST_LATE_SECONDS)
        self._operations += 1
        return self._channel.swap(self._operations, self.rank, value)
