"""The processor's name, for results and profiles."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's model name, or its architecture where the system does not give one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
