"""Free host memory, and how the process keeps the memory it has freed."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

from adaptive_rec.system.limits import UNLIMITED, bytes_within_limits

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""

KEPT_BYTES = 1 << 30
LARGEST_KEPT_BYTES = 32 << 20
"""The most that glibc allows."""


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory (up to 1 GiB, of arrays of up to 32 MiB) for the next array.

    By default it gives large arrays back to the system and allocates them again, page by page, in every step: thousands of
    page faults, each of which also stops the other threads for a moment. Returns whether this was set: only with glibc, and
    only where the user has set none of its variables `MALLOC_*`.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has no such thing
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))


def give_back_freed_memory() -> None:
    """Give memory that was freed and kept back to the system, before much of it is allocated again: that of the C library, where
    it is glibc, and that of Arrow, where it is loaded."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of both versions of control groups: the limit, the use, and the name of the reclaimable file cache."""


def available_bytes(system: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the host memory that can be used without swapping, on this machine, in this container and by the limits of this
    process.

    Where the system gives no figure, memory counts as unlimited.
    """
    return min(_of_machine(system), *(_of_group(group, *files) for files in _GROUP_FILES), bytes_within_limits())


def _of_machine(system: Path) -> int:
    try:
        lines = (system / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return UNLIMITED
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), UNLIMITED)


def _of_group(group: Path, limit: str, use: str, reclaimable: str) -> int:
    try:
        most, used = (group / limit).read_text(encoding="ascii"), (group / use).read_text(encoding="ascii")
        statistics = (group / use).with_name("memory.stat").read_text(encoding="ascii").split()
        cached = int(statistics[statistics.index(reclaimable) + 1]) if reclaimable in statistics else 0
        return max(0, int(most) - int(used) + cached)
    except (OSError, ValueError):  # no group, or one without a limit ("max")
        return UNLIMITED
