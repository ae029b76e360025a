"""The processor's name, for results and profiles, and its maker, for what runs well on it."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's model name, or its architecture where the system does not give one."""
    return _fact("model name") or platform.machine()


def vendor() -> str:
    """Return the processor's maker as it names itself, such as AuthenticAMD; empty where the system does not give one."""
    return _fact("vendor_id")


def _fact(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
