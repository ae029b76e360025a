"""On what a result was measured: device, processor, versions, settings, a fingerprint of the sources."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from adaptive_rec.system.processor import processor
from benchmarks.common.command import ROOT as ROOT

NOT_MEASURING = ("__main__.py", "plan.py", "picture.py", "report.py", "results.py")
"""Files of the benchmarks that no figure depends on. Of the plan a result keeps its own cell."""

LIBRARIES = (
    "torch", "triton", "numba", "numpy", "pydantic", "fbgemm_gpu", "fbgemm_gpu-cpu", "torchrec", "datasketches", "polars",
    "pandas",
)  # fmt: skip


def describe(rehearsal: str, bench: str) -> dict[str, Any]:
    """Machine and versions, for the benchmarks under `benchmarks/BENCH`. Opens the device, so it is asked in a cell's
    process only."""
    import torch

    found: dict[str, Any] = {
        "rehearsal": rehearsal,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "host_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": {"Python": platform.python_version(), **versions()},
        "omp": {key: value for key, value in os.environ.items() if key.startswith(("OMP_", "GOMP_", "KMP_"))},
        "commit": commit(),
        "fingerprint": fingerprint(bench),
        "here": here(),
    }
    if torch.cuda.is_available() and not rehearsal:
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpu_bytes": properties.total_memory, "driver": driver()}
        found["versions"]["CUDA"] = torch.version.cuda
    return found


@cache
def here() -> dict[str, Any]:
    """What must be the same for a cell not to be measured again. Does not open the device."""
    gpus = nvidia_smi("name") + [os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    return {
        "gpus": gpus,
        "driver": driver(),
        "processor": processor(),
        "Python": platform.python_version(),
        **versions(),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def driver() -> str:
    return next(iter(nvidia_smi("driver_version")), "unknown")


def nvidia_smi(what: str) -> list[str]:
    """A property of each GPU; none where nobody knows."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


@cache
def commit() -> str:
    """The commit that is checked out, with a plus where sources differ from it; unknown outside of a repository."""
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True).stdout
            for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.strip() + ("+" if changes.strip() else "")


@cache
def fingerprint(bench: str) -> str:
    """A digest of every source a figure depends on: a cell measured on other sources is measured again."""
    digest = hashlib.sha256()
    for path in measuring_files(bench):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def measuring_files(bench: str) -> list[Path]:
    """The package and what measures it; what plans cells, starts them and shows their figures may change meanwhile."""
    folders = ("adaptive_rec", "policies", "recipes", "configs", "benchmarks/common", f"benchmarks/{bench}")
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return [
        path for path in found
        if path.suffix in (".py", ".toml") and not (path.parent.parent.name == "benchmarks" and path.name in NOT_MEASURING)
    ]  # fmt: skip
