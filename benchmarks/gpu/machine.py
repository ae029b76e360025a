"""On what a result was measured: device, processor, versions, a fingerprint of the sources."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARIES = ("torch", "triton", "numba", "numpy", "pydantic", "fbgemm_gpu")


def describe(rehearsal: str) -> dict[str, Any]:
    """Machine and versions. Opens the device, so it is asked in a cell's process only."""
    import torch

    found: dict[str, Any] = {
        "rehearsal": rehearsal,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": {"Python": platform.python_version(), **versions()},
        "fingerprint": fingerprint(),
    }
    if torch.cuda.is_available() and not rehearsal:
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpu_bytes": properties.total_memory, "driver": driver()}
        found["versions"]["CUDA"] = torch.version.cuda
    return found


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def fingerprint() -> str:
    """A digest of every source a figure depends on: a cell measured on other sources is measured again."""
    digest = hashlib.sha256()
    for folder in ("adaptive_rec", "policies", "configs", "benchmarks/gpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml") and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
