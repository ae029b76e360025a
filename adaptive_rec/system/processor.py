"""The processor's name, as results and profiles tell it."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Its model where the system tells, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
