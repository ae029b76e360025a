"""The few calls of the CUDA driver that a batch takes, without giving up the interpreter's lock.

torch gives it up for every copy and every event, and Triton for every launch. A call takes some microseconds, but then it waits
for the lock beside five other threads, which takes many times as long (`docs/log.md`). Here only waiting gives it up.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from types import SimpleNamespace
from typing import Any

_LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_NOT_READY = 600
_BLOCKING_SYNC, _DISABLE_TIMING = 1, 2
_PORTABLE, _DEVICEMAP = 1, 2
_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxGetCurrent": (c_void_p,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (c_void_p, c_void_p, c_uint),
    "cuMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuGetErrorString": (c_int, c_void_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, c_void_p, c_void_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
}


@cache
def driver_calls(keep_lock: bool = True) -> Any:
    """Return the driver's functions by their names. Those that it lacks, as an older one may, are None."""
    library: Any = (ctypes.PyDLL if keep_lock else ctypes.CDLL)(_LIBRARY)
    found = SimpleNamespace()
    for name, types in _TYPES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = types, c_int
        setattr(found, name, function)
    return found


def check_driver(result: int) -> None:
    """Raise RuntimeError where a call of the driver has failed."""
    if result:
        text = ctypes.c_char_p()
        driver_calls().cuGetErrorString(result, byref(text))
        raise RuntimeError(f"CUDA error {result}: {(text.value or b'unknown').decode()}")


LOCKED: set[int] = set()
"""Addresses of memory of the host that is locked, and that kernels find under the same addresses."""


class DriverEvent:
    """A point in a stream. Its handle is used again after the last reference to it is dropped; pending waits stay as they are."""

    __slots__ = ("_free", "handle")

    def __init__(self, handle: int, free: deque[int]) -> None:
        self.handle, self._free = handle, free

    def __del__(self) -> None:
        self._free.append(self.handle)


class Driver:
    """Copies and events of one device. Any thread may call them, those that queue something within ``with driver:``; streams are
    those of torch, as numbers.

    Every call raises RuntimeError where the driver reports an error, of this call or of earlier work.
    """

    def __init__(self, index: int) -> None:
        """`index`: torch's number of the device."""
        self._calls = calls = driver_calls()
        self._copy, self._event_record = calls.cuMemcpyAsync, calls.cuEventRecord
        self._wait_event, self._current = calls.cuStreamWaitEvent, calls.cuCtxGetCurrent
        long = driver_calls(keep_lock=False)
        self._synchronize, self._lock, self._unlock = long.cuEventSynchronize, long.cuMemHostRegister_v2, long.cuMemHostUnregister
        self._thread = threading.local()
        self._free: deque[int] = deque()
        device, context = c_int(), c_void_p()
        check_driver(calls.cuInit(0))
        check_driver(calls.cuDeviceGet(byref(device), index))
        check_driver(calls.cuDevicePrimaryCtxRetain(byref(context), device.value))
        self._context = context.value

    def __enter__(self) -> Driver:
        """Make the device the calling thread's: for good where it had none, and until the end where it had another."""
        found = c_void_p()
        check_driver(self._current(byref(found)))
        had_another = found.value not in (None, self._context)
        if had_another:
            check_driver(self._calls.cuCtxPushCurrent_v2(self._context))
        elif found.value is None:
            check_driver(self._calls.cuCtxSetCurrent(self._context))
        try:
            self._thread.had_another.append(had_another)
        except AttributeError:  # the thread's first time
            self._thread.had_another = [had_another]
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.had_another.pop():
            check_driver(self._calls.cuCtxPopCurrent_v2(byref(c_void_p())))

    def lock(self, address: int, nbytes: int) -> None:
        """Lock memory of the host, so that kernels can read and write it. Another thread may go on meanwhile."""
        with self:
            check_driver(self._lock(address, nbytes, _PORTABLE | _DEVICEMAP))  # as the runtime does by default
            there = c_void_p()
            if not self._calls.cuMemHostGetDevicePointer_v2(byref(there), address, 0) and there.value == address:
                LOCKED.add(address)

    def unlock(self, address: int) -> None:
        """Unlock it, if it is locked: whoever was interrupted while it was being locked cannot know."""
        LOCKED.discard(address)
        with self:
            self._unlock(address)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy between addresses; those of the host must be pinned."""
        if nbytes:
            check_driver(self._copy(to, source, nbytes, stream))

    def record(self, stream: int) -> DriverEvent:
        """Return the event that all is done that was queued on the stream so far."""
        try:
            event = DriverEvent(self._free.pop(), self._free)
        except IndexError:
            handle = c_void_p()
            # Blocking: a waiting thread sleeps instead of spinning.
            check_driver(self._calls.cuEventCreate(byref(handle), _BLOCKING_SYNC | _DISABLE_TIMING))
            assert handle.value is not None
            event = DriverEvent(handle.value, self._free)
        check_driver(self._event_record(event.handle, stream))
        return event

    def wait(self, stream: int, event: DriverEvent) -> None:
        """Have what is queued on the stream from now on come after the event."""
        check_driver(self._wait_event(stream, event.handle, 0))

    def synchronize(self, event: DriverEvent) -> None:
        """Wait for an event."""
        with self:
            check_driver(self._synchronize(event.handle))

    def has_happened(self, event: DriverEvent) -> bool:
        with self:
            found = self._calls.cuEventQuery(event.handle)
        if found != _NOT_READY:
            check_driver(found)
        return found != _NOT_READY
