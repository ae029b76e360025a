"""Limits of a process on its memory (`ulimit -v`, `ulimit -d`, `prlimit`), met before libraries are loaded and threads start.

Where memory ends inside them, they do not raise: libgomp ends the process when it cannot start a thread, compiled code may be
killed by a signal, and who waits for a thread that did not start may wait for ever.
"""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.units import size

UNLIMITED = 1 << 62
LIBRARIES_BYTES = {"VmSize": 1400 << 20, "VmData": 420 << 20}
"""Address space, and data, of a process that has loaded torch, Numba and Arrow and works with one thread: measured with torch
2.13 for CPUs, rounded up."""
WORK_BYTES = 640 << 20
"""What compiling all kernels and the first steps take besides, measured as well: the memory plan has the tables."""
OWN_THREADS = 6
"""Threads that are started besides those that compute: reading, classifying, tracking, the sidecar's."""
_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


@dataclass(frozen=True)
class Limit:
    """A limit on the memory of this process."""

    option: str
    """How a shell sets it."""
    what: str
    key: str
    """The line of /proc/self/status that counts against it."""
    most_bytes: int

    @property
    def left_bytes(self) -> int:
        return max(0, self.most_bytes - _used_bytes(self.key))


def limits_in_force() -> list[Limit]:
    """Return the limits of this process that are set."""
    kinds = (
        (resource.RLIMIT_AS, "ulimit -v, prlimit --as", "address space", "VmSize"),
        (resource.RLIMIT_DATA, "ulimit -d, prlimit --data", "data", "VmData"),
    )
    found = [(Limit(option, what, key, resource.getrlimit(kind)[0])) for kind, option, what, key in kinds]
    return [limit for limit in found if 0 <= limit.most_bytes < UNLIMITED]


def bytes_within_limits() -> int:
    """Return the memory that this process may still take by its limits; UNLIMITED where it has none."""
    return min((limit.left_bytes for limit in limits_in_force()), default=UNLIMITED)


def save_address_space(environment: MutableMapping[str, str]) -> None:
    """Under a limit, have Arrow reserve no GiB ahead and the C library no 64 MiB for each thread. Call it before Arrow is
    loaded."""
    if not limits_in_force():
        return
    environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def check_libraries() -> None:
    """Raise MemoryPlanError where a limit leaves no room for torch, Numba and Arrow. Call it before they are loaded."""
    for limit in limits_in_force():
        if (needed := LIBRARIES_BYTES[limit.key] + OWN_THREADS * stack_bytes()) > limit.most_bytes:
            raise _too_low(limit, needed, "torch, Numba and Arrow", "raise it")


def check_threads(threads: int) -> None:
    """Raise MemoryPlanError where a limit leaves no room for this many threads that compute, or they cannot be started."""
    count = threads + OWN_THREADS
    for limit in limits_in_force():
        if WORK_BYTES + count * stack_bytes() > limit.left_bytes:
            needed = _used_bytes(limit.key) + WORK_BYTES + count * stack_bytes()
            way_out = "raise it, or lower run.threads or the stack (ulimit -s)"
            raise _too_low(limit, needed, f"{count} threads with stacks of {size(stack_bytes())}", way_out)
    _try_threads(threads)


def stack_bytes() -> int:
    """Return the address space of a thread's stack."""
    most = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return most if 0 < most < UNLIMITED else 8 << 20


def limits_in_words() -> str:
    """Return which limits are set, for an error about memory; empty where none are."""
    found = [f"{limit.what} {size(limit.most_bytes)} ({limit.option})" for limit in limits_in_force()]
    return f"limits of this process: {', '.join(found)}" if found else ""


def _try_threads(threads: int) -> None:
    """Start threads and end them: a limit on processes, or a container's, is met here and not inside libgomp."""
    done, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(threads):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise MemoryPlanError(
            f"{threads} threads must start (run.threads), {len(started)} did; lower run.threads, or raise the limit of processes "
            "(ulimit -u, the pids of a container) or of the address space (ulimit -v)"
        ) from None
    finally:
        done.set()
        for thread in started:
            thread.join()


def _too_low(limit: Limit, needed: int, what: str, way_out: str) -> MemoryPlanError:
    rule = f"the limit of this process on its {limit.what} ({limit.option}) must be at least {_mib(needed)} for {what}"
    return MemoryPlanError(f"{rule}, got {_mib(limit.most_bytes)}; {way_out}")


def _mib(size_bytes: int) -> str:
    """Return a size in MiB, in which two that are near differ."""
    return f"{size_bytes >> 20:,} MiB"


def _used_bytes(key: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0
