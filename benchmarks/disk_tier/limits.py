"""A limit on the memory of a process, its page cache included: a memory group of Linux (cgroup v1), which root can make."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")

WHY_NOT = (
    "bench: a limit on memory must include the page cache, or files would lie in memory: that takes root and the memory "
    "controller of cgroup v1 at /sys/fs/cgroup/memory, {missing}"
)


class MemoryGroup:
    """The memory of a process and its children."""

    def __init__(self, name: str) -> None:
        """Raises SystemExit where no group can be made."""
        self.path = MEMORY_GROUPS / f"bench-disk-{os.getpid()}-{name}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise SystemExit(WHY_NOT.format(missing=f"{self.path} cannot be made: {error.strerror}")) from None

    def enter(self) -> None:
        """Move the calling process into the group."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    def limit(self, size_bytes: int) -> None:
        """Set the limit; memory above it is freed now."""
        (self.path / "memory.limit_in_bytes").write_text(str(size_bytes), encoding="utf-8")

    @property
    def needed_bytes(self) -> int:
        """Memory that cannot be freed: that of the processes, and what the kernel keeps for them."""
        lines = (self.path / "memory.stat").read_text(encoding="utf-8").splitlines()
        statistics = dict(line.split() for line in lines)
        kernel = int((self.path / "memory.kmem.usage_in_bytes").read_text(encoding="utf-8"))
        return int(statistics["total_rss"]) + kernel

    def free_cache(self) -> None:
        """Drop what of its page cache is not in use."""
        (self.path / "memory.force_empty").write_text("0", encoding="utf-8")

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        self.path.rmdir()
