"""What a process uses of the machine, as Linux counts it, and what its control groups allow."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POINTS_KEPT = 720
PAGE_BYTES, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessUse:
    """A process at a moment."""

    time: float
    """Seconds since the epoch."""
    cpu_seconds: float
    """Processor time of all its threads since it started."""
    cpu_cores: float | None
    """Cores that were busy with it since the reading before; None at the first one."""
    resident_bytes: int
    threads: int
    read_bytes: int | None
    """Bytes that it made the disk read; None where the system does not tell. So is the next one."""
    written_bytes: int | None


@dataclass(frozen=True)
class ProcessLimits:
    """What a process may use at the most."""

    cores: float
    """Cores' time: those it may run on, or less where its control groups give it less."""
    memory_bytes: int | None
    """The machine's memory, or the least limit of its control groups; None where neither is known."""


class ProcessMeter:
    """Reads what a process uses, and remembers the newest readings."""

    def __init__(self, pid: int, system: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> None:
        self._process, self._system, self._group = system / str(pid), system, group
        self._pid = pid
        self._last: tuple[float, float] | None = None
        self.points: deque[ProcessUse] = deque(maxlen=POINTS_KEPT)

    def read(self, keep: bool = False) -> ProcessUse | None:
        """Return the use now. None where the process has ended or the system does not tell. `keep`: remember it, and count
        `cpu_cores` of later readings from here."""
        try:
            words = (self._process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            cpu_seconds = (int(words[11]) + int(words[12])) / TICKS
            resident_bytes, threads = int(words[21]) * PAGE_BYTES, int(words[17])
        except (OSError, ValueError, IndexError):
            return None
        now, last = time.monotonic(), self._last
        passed = now - last[0] if last else 0.0
        cores = (cpu_seconds - last[1]) / passed if last and passed > 0 else None
        found = ProcessUse(time.time(), cpu_seconds, cores, resident_bytes, threads, *self._disk())
        if keep:
            self._last = now, cpu_seconds
            self.points.append(found)
        return found

    def limits(self) -> ProcessLimits:
        """Return what the process may use now."""
        with suppress(OSError, AttributeError):
            cores = float(len(os.sched_getaffinity(self._pid)))
            return ProcessLimits(min([cores, *self._shares()]), min(self._memory_limits(), default=None))
        return ProcessLimits(
            min([float(os.cpu_count() or 1), *self._shares()]), min(self._memory_limits(), default=None)
        )

    def _disk(self) -> tuple[int | None, int | None]:
        try:
            lines = (self._process / "io").read_text(encoding="ascii").splitlines()
            counts = {name: int(number) for name, _, number in (line.partition(": ") for line in lines)}
            return counts["read_bytes"], counts["write_bytes"]
        except (OSError, ValueError, KeyError):
            return None, None

    def _groups(self) -> Iterator[Path]:
        """Yield the process's control group and those around it. In a container the outermost one that is seen has its limits."""
        path = ""
        with suppress(OSError):
            lines = (self._process / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
            path = next((line[3:] for line in lines if line.startswith("0::")), "")
        inner = self._group / path.strip("/") if ".." not in path else self._group
        while inner != self._group and self._group in inner.parents:
            yield inner
            inner = inner.parent
        yield self._group

    def _shares(self) -> Iterator[float]:
        for group in self._groups():
            yield from core_shares(group)

    def _memory_limits(self) -> Iterator[int]:
        with suppress(OSError, ValueError, IndexError):
            lines = (self._system / "meminfo").read_text(encoding="ascii").splitlines()
            yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
        for group in self._groups():
            for name in ("memory.max", "memory/memory.limit_in_bytes"):
                with suppress(OSError, ValueError):
                    yield int((group / name).read_text(encoding="ascii"))


def core_shares(group: Path) -> Iterator[float]:
    """Yield how many cores' time a control group of either version is given; nothing where it has no limit."""
    for quota_file, period_file in (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError, IndexError):
            words = (group / quota_file).read_text(encoding="ascii").split()
            period = (group / period_file).read_text(encoding="ascii") if period_file else words[1]
            quota = int(words[0])  # "max" where there is no limit
            if quota > 0 and int(period) > 0:
                yield quota / int(period)
