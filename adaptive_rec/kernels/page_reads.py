"""Reads of many pages of files at once.

Linux takes them together (`io_submit`): one call hands a disk as many reads as it can have at a time. With files that are read
past the system's cache this takes half of the processor time of a call for each page. Where there is no such call, as in a
sandbox that forbids it, the pages are read one after the other.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.kernels.jit import JIT_INLINE, JIT_PART

QUEUED = 256
"""Reads at one time at the most."""

_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""The system's numbers of io_setup, io_destroy, io_submit and io_getevents, by machine."""

_WORDS = 8
"""Words of 8 bytes of a request (`struct iocb`): the reader's number, two of flags, the file in the upper half of the third with
the operation below (0: read), then memory, size and place in the file."""

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))
_call = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.uint64, types.int64, types.int64, types.uintp, types.uintp)
)


class ReadQueue(NamedTuple):
    """Reads of up to QUEUED pages (Q)."""

    context: Any
    """The system's name of the queue; 0 where pages are read one after the other."""
    submit: Any
    wait: Any
    """Numbers of the calls."""
    request_QW: np.ndarray
    where_Q: np.ndarray
    """Where each request is in memory."""
    event_Q4: np.ndarray
    """What has ended (`struct io_event`): the request's number, its memory, the bytes read or the negative error."""
    found_Q: np.ndarray
    """Bytes of each page that were read; less than 1 where that failed."""
    pages: np.ndarray
    numbers: np.ndarray
    """The memory of the pages, as bytes and as words of 4."""


class _Owner:
    """Keeps a queue until it is collected."""

    def __init__(self, page_bytes: int) -> None:
        setup, destroy, submit, wait = _NUMBERS.get(platform.machine(), (0, 0, 0, 0))
        context, libc = ctypes.c_ulong(0), ctypes.CDLL(None)
        if submit and libc.syscall(setup, QUEUED, ctypes.byref(context)) == 0:
            weakref.finalize(self, libc.syscall, destroy, context)
        requests = np.zeros((QUEUED, _WORDS), np.uint64)
        pages = zeros((QUEUED * page_bytes,), np.uint8, BLOCK_BYTES)
        self.queue = ReadQueue(
            np.uint64(context.value), np.int64(submit), np.int64(wait), requests,
            requests.ctypes.data + 8 * _WORDS * np.arange(QUEUED, dtype=np.uint64), np.zeros((QUEUED, 4), np.int64),
            np.zeros(QUEUED, np.int64), pages, pages.view(np.uint32),
        )  # fmt: skip


_owners = threading.local()


def queue_of_thread(page_bytes: int) -> ReadQueue:
    """Return the calling thread's queue for pages of this size."""
    if not hasattr(_owners, "by_size"):
        _owners.by_size = {}
    found = _owners.by_size.get(page_bytes)
    if found is None:
        found = _owners.by_size[page_bytes] = _Owner(page_bytes)
    queue: ReadQueue = found.queue
    return queue


@njit(**JIT_INLINE)
def add_read(queue, place, descriptor, start, size):
    """Put the read of a page in a place of the queue."""
    request = queue.request_QW[place]
    request[0] = place
    request[2] = np.uint64(descriptor) << np.uint64(32)
    request[3] = queue.pages.ctypes.data + place * size
    request[4], request[5] = size, start


@njit(**JIT_INLINE)
def _read_one(request):
    return _pread(np.int32(request[2] >> np.uint64(32)), request[3], request[4], np.int64(request[5]))


@njit(**JIT_PART)
def read_added(queue, count):
    """Read the pages in the first `count` places, and set what was found of each."""
    for q in range(count):
        queue.found_Q[q] = -1
    if queue.context == 0:
        for q in range(count):
            queue.found_Q[q] = _read_one(queue.request_QW[q])
        return
    submitted = 0
    while submitted < count:
        taken = _call(queue.submit, queue.context, count - submitted, queue.where_Q.ctypes.data + 8 * submitted, 0, 0)
        if taken <= 0:
            break
        submitted += taken
    for q in range(submitted, count):  # what the system did not take
        queue.found_Q[q] = _read_one(queue.request_QW[q])
    ended = 0
    while ended < submitted:
        some = _call(queue.wait, queue.context, submitted - ended, submitted - ended, queue.event_Q4.ctypes.data, 0)
        for event in range(max(some, 0)):  # negative: a signal came
            queue.found_Q[queue.event_Q4[event, 0]] = queue.event_Q4[event, 2]
        ended += max(some, 0)
