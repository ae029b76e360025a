"""What `Driver` asks of the CUDA driver, on one that is made up: whose device is current, which events are used again, errors."""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_rec.kernels import driver_calls
from adaptive_rec.kernels.driver_calls import Driver

OURS, OTHER = 77, 88


class MadeUpLibrary(SimpleNamespace):
    """Contexts of threads, and a list of all that was queued."""

    def __init__(self) -> None:
        self.thread = threading.local()
        self.queued: list[Any] = []
        self.result = self.created = self.moved = 0

    @property
    def contexts(self) -> list[int]:
        if not hasattr(self.thread, "contexts"):
            self.thread.contexts = []
        found: list[int] = self.thread.contexts
        return found

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = OURS
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.contexts[-1] if self.contexts else None
        return 0

    def cuCtxSetCurrent(self, context: int) -> int:
        self.contexts[:] = [context]
        return 0

    def cuCtxPushCurrent_v2(self, context: int) -> int:
        self.contexts.append(context)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.contexts.pop()
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        assert flags == 3, "waiting threads sleep, nobody asks for times"
        self.created += 1
        event._obj.value = 100 + self.created
        return 0

    def _queue(self, *call: Any) -> int:
        assert self.contexts[-1] == OURS
        self.queued.append(call)
        return self.result

    def cuMemHostRegister_v2(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 3, "kernels of every device may use it"
        return self._queue("lock", address, nbytes)

    def cuMemHostGetDevicePointer_v2(self, there: Any, address: int, flags: int) -> int:
        there._obj.value = address + self.moved
        return 0

    def cuMemHostUnregister(self, address: int) -> int:
        self._queue("unlock", address)
        return 713

    def cuMemcpyAsync(self, *call: Any) -> int:
        return self._queue("copy", *call)

    def cuEventRecord(self, *call: Any) -> int:
        return self._queue("record", *call)

    def cuStreamWaitEvent(self, *call: Any) -> int:
        return self._queue("wait", *call)

    def cuEventSynchronize(self, event: int) -> int:
        return self._queue("synchronize", event)

    def cuEventQuery(self, event: int) -> int:
        return self._queue("query", event)

    def cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = b"an illegal memory access was encountered" if result == 700 else None
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> MadeUpLibrary:
    made_up = MadeUpLibrary()
    monkeypatch.setattr(driver_calls, "driver_calls", lambda keep_lock=True: made_up)
    return made_up


def test_a_thread_keeps_the_device_it_had(library: MadeUpLibrary) -> None:
    """A new thread, for which CUDA has none yet, keeps this one."""
    driver, seen = Driver(1), list[Any]()

    def work(context: int | None) -> None:
        library.contexts[:] = [] if context is None else [context]
        for _ in range(2):
            with driver:
                driver.copy(1, 2, 3, 4)
                with driver:  # as work may queue work
                    driver.copy(1, 2, 3, 4)
                driver.copy(1, 2, 3, 4)
            seen.append((context, list(library.contexts)))
        with pytest.raises(ZeroDivisionError), driver:
            raise ZeroDivisionError
        seen.append((context, list(library.contexts)))

    for context in (None, OURS, OTHER):
        thread = threading.Thread(target=work, args=(context,))
        thread.start()
        thread.join()
    assert seen == [(context, [OTHER if context == OTHER else OURS]) for context in (None, OURS, OTHER) for _ in range(3)]


def test_events_are_used_again_once_nobody_has_them(library: MadeUpLibrary) -> None:
    with Driver(0) as driver:
        first = driver.record(5)
        second = driver.record(6)
        driver.wait(7, first)
        assert first.handle != second.handle
        handle = first.handle
        del first
        assert driver.record(8).handle == handle  # and dropped at once
        third = driver.record(9)
        assert third.handle == handle
        assert library.created == 2
        driver.copy(1, 2, 0, 3)
        driver.copy(1, 2, 9, 3)
    assert library.queued == [
        ("record", handle, 5), ("record", second.handle, 6), ("wait", 7, handle, 0), ("record", handle, 8),
        ("record", handle, 9), ("copy", 1, 2, 9, 3),
    ]  # fmt: skip


def test_a_thread_may_wait_before_it_does_anything_else(library: MadeUpLibrary) -> None:
    with Driver(0) as driver:
        event = driver.record(5)
    waits = [lambda: driver.synchronize(event), lambda: driver.has_happened(event)]
    for wait in waits:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(wait).result()


def test_memory_is_locked_and_unlocked_even_if_it_was_not(library: MadeUpLibrary) -> None:
    driver = Driver(0)
    driver.lock(1, 2)
    assert driver_calls.LOCKED == {1}
    driver.unlock(1)
    assert library.queued == [("lock", 1, 2), ("unlock", 1)]
    library.moved = 1 << 40
    driver.lock(1, 2)
    assert not driver_calls.LOCKED, "kernels would find it elsewhere"
    library.result = 2
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        driver.lock(1, 2)


def test_errors_are_raised_in_the_drivers_words(library: MadeUpLibrary) -> None:
    with Driver(0) as driver:
        event = driver.record(5)
        assert driver.has_happened(event)
        library.result = 600
        assert not driver.has_happened(event)
        library.result = 700
        calls = [
            lambda: driver.copy(1, 2, 3, 4), lambda: driver.record(5), lambda: driver.wait(5, event),
            lambda: driver.synchronize(event), lambda: driver.has_happened(event),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(RuntimeError, match="CUDA error 700: an illegal memory access was encountered"):
                call()
        library.result = 999
        with pytest.raises(RuntimeError, match="CUDA error 999: unknown"):
            driver.copy(1, 2, 3, 4)


def test_a_driver_that_lacks_a_call_says_so_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_calls, "_LIBRARY", ctypes.util.find_library("c") or "libc.so.6")
    monkeypatch.setitem(driver_calls._TYPES, "abs", (ctypes.c_int,))
    found = driver_calls.driver_calls.__wrapped__()
    assert found.abs(-3) == 3
    assert found.cuInit is None
