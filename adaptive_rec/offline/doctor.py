"""Judgement of a machine's facts: the problems that prevent a run or slow it down, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from adaptive_rec.offline.machine_facts import Facts
from adaptive_rec.units import count

Level = Literal["ok", "note", "problem"]

SLOW_DISK_BYTES_PER_SECOND = 50e6
FEW_ROWS_PER_SECOND = 5_000
"""Random reads of an SSD are above it, those of a disk that turns far below."""
LITTLE_DISK_BYTES = 2 << 30
LITTLE_MEMORY_BYTES = 2 << 30
LONG_SYNC_SECONDS = 1.0
PASSING_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Finding:
    """One fact, judged."""

    area: str
    level: Level
    text: str
    remedy: str = ""


def findings(facts: Facts) -> list[Finding]:
    """Return the judgement of all facts, area by area."""
    parts: list[Callable[[Facts], Iterator[Finding]]] = [
        _versions, _torchrec, _cuda, _kernels, _threads, _memory, _disk, _service, _clock
    ]  # fmt: skip
    return [finding for part in parts for finding in part(facts)]


def _versions(facts: Facts) -> Iterator[Finding]:
    wanted = facts.required.get("python", "")
    text = f"Python {facts.python}"
    if satisfies(facts.python, wanted):
        yield Finding("versions", "ok", text)
    else:
        yield Finding("versions", "problem", f"{text}, must be {wanted}", "create the environment with another Python")
    for name, version in facts.versions.items():
        wanted = facts.required.get(name, "")
        if version is None:
            yield Finding("versions", "problem", f"{name} is not installed", f"pip install '{name}{wanted}'")
        elif satisfies(version, wanted):
            yield Finding("versions", "ok", f"{name} {version}")
        else:
            text = f"{name} must be {wanted}, is {version}"
            yield Finding("versions", "problem", text, f"pip install '{name}{wanted}'")


def _torchrec(facts: Facts) -> Iterator[Finding]:
    """TorchRec 1.N and FBGEMM 1.N are built for torch 2.(N + 5) (the table of releases in FBGEMM's ``__init__``), which their
    packages do not require."""
    installed, torch = facts.torchrec_versions, facts.versions.get("torch")
    fbgemm = [name for name in installed if name != "torchrec"]
    if "torchrec" in installed and not fbgemm:
        remedy = "pip install --no-deps fbgemm-gpu (or fbgemm-gpu-cpu)"
        yield Finding("versions", "note", "torchrec cannot be imported without FBGEMM", remedy)
    if len(fbgemm) > 1:
        text = f"{' and '.join(fbgemm)} are both installed, and overwrite each other's files"
        yield Finding("versions", "note", text, f"pip uninstall {' '.join(fbgemm)}, then install one of them")
    if torch is None or not installed:
        return
    names = ", ".join(f"{name} {version}" for name, version in installed.items())
    if all(_is_built_for(version, torch) for version in installed.values()):
        yield Finding("versions", "ok", f"{names}, for torch {torch}")
        return
    number = Version(torch).minor - 5
    remedy = "pip install --no-deps " + " ".join(f"'{name}==1.{number}.*'" for name in installed)
    yield Finding("versions", "note", f"{names} and torch {torch} do not go together: TorchRec may not load", remedy)


def _is_built_for(version: str, torch: str) -> bool:
    """Return whether a version of TorchRec or FBGEMM is built for a version of torch; of 2.0 and above it is not known."""
    own, wanted = Version(version), Version(torch)
    return own.major >= 2 or (own.major == 1 and (wanted.major, wanted.minor) == (2, own.minor + 5))


def _cuda(facts: Facts) -> Iterator[Finding]:
    cuda = facts.cuda
    if cuda.built_for is None:
        if cuda.driver is None:
            yield Finding("device", "ok", "no GPU, and a torch for CPUs")
        else:
            text = f"there is an NVIDIA driver ({cuda.driver}), but torch is a build for CPUs"
            yield Finding("device", "problem", text, "install a torch that is built for CUDA, or set run.device=cpu")
        return
    if not cuda.devices:
        if cuda.driver is None:
            yield Finding("device", "ok", f"no GPU (torch is built for CUDA {cuda.built_for})")
            return
        why = f": {cuda.error}" if cuda.error else ""
        text = f"torch, built for CUDA {cuda.built_for}, cannot use the GPU under driver {cuda.driver}{why}"
        remedy = (
            "install a newer driver or a torch built for an older CUDA; check that CUDA_VISIBLE_DEVICES names a GPU"
        )
        yield Finding("device", "problem", text, remedy)
        return
    for name, capability in cuda.devices:
        text = f"{name}, capability {capability[0]}.{capability[1]}, CUDA {cuda.built_for}, driver {cuda.driver}"
        if runs_on(capability, cuda.architectures):
            yield Finding("device", "ok", text)
        else:
            known = ", ".join(cuda.architectures)
            yield Finding("device", "problem", f"{text}: torch has code for {known}", "install a torch for this GPU")
    if cuda.triton is None:
        yield Finding(
            "device", "problem", "Triton is not installed, and kernels of a GPU need it", "pip install triton"
        )
    else:
        yield Finding("device", "ok", f"Triton {cuda.triton}")
    if cuda.pinned:
        remedy = "raise the limit on locked memory (ulimit -l) or of the container's memory"
        yield Finding("device", "problem", f"pinned memory cannot be had: {cuda.pinned}", remedy)


def _kernels(facts: Facts) -> Iterator[Finding]:
    layer = facts.environment.get("NUMBA_THREADING_LAYER")
    if facts.openmp:
        yield Finding("kernels", "ok", "Numba runs on OpenMP's threads, which two threads of Python may use at once")
        if layer not in (None, "omp", "default", "threadsafe"):
            text = f"NUMBA_THREADING_LAYER={layer} is not heeded: kernels take omp, as workqueue ends the process"
            yield Finding("kernels", "note", text, "unset it")
    else:
        text = "Numba has no OpenMP here; kernels run on one thread, as its other layers are not safe"
        yield Finding("kernels", "note", text, "install libgomp (the package libgomp1 of Debian and Ubuntu)")
    if facts.numba_cache_error:
        text = f"compiled kernels cannot be kept, each start compiles them anew: {facts.numba_cache_error}"
        yield Finding("kernels", "note", text, "set XDG_CACHE_HOME or NUMBA_CACHE_DIR to a folder that can be written")


def _threads(facts: Facts) -> Iterator[Finding]:
    cores = f"{facts.cores} core{'s' * (facts.cores != 1)}"
    share = facts.core_share
    if share is not None and share < facts.cores - 0.5:
        text = f"{cores}, but the container gets time on {share:.1f} of them: more threads than that hold each other up"
        yield Finding("threads", "note", text, f"set run.threads={max(1, int(share))}, or raise the container's limit")
    else:
        yield Finding("threads", "ok", f"{cores} for this process")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        value = facts.environment.get(name, "")
        if value.isdecimal() and int(value) < facts.cores:
            text = f"{name}={value} leaves cores idle"
            yield Finding(
                "threads", "note", text, f"unset it; run.threads says how many threads there are ({cores} at 0)"
            )
    policy = facts.environment.get("OMP_WAIT_POLICY", "").lower()
    if policy:
        text = f"OMP_WAIT_POLICY={policy} decides how threads wait; left alone they spin for some tens of microseconds"
        yield Finding("threads", "note", text, "unset it, unless it was measured to be better")


def _memory(facts: Facts) -> Iterator[Finding]:
    text = f"{_gib(facts.memory_available_bytes)} of {_gib(facts.memory_total_bytes)} are available"
    if facts.memory_available_bytes < LITTLE_MEMORY_BYTES:
        remedy = "end processes that use it; adaptive-rec train --dry-run shows what a run needs"
        yield Finding("memory", "note", f"only {text}", remedy)
    else:
        yield Finding("memory", "ok", text)
    if facts.shared_memory_error:
        text = f"memory cannot be shared with the dashboard: {facts.shared_memory_error}"
        yield Finding(
            "memory", "problem", text, "train with --no-serve, or allow memfd_create in the container's profile"
        )
    elif facts.dev_shm_bytes is not None:
        text = (
            f"memory can be shared without a name; /dev/shm holds {_gib(facts.dev_shm_bytes)}, which nothing depends on"
        )
        yield Finding("memory", "ok", text)


def _disk(facts: Facts) -> Iterator[Finding]:
    disk = facts.disk
    if disk.error:
        text = f"{disk.folder} cannot be written: {disk.error}"
        yield Finding("disk", "problem", text, "give a directory that you may write with --out")
        return
    speed = disk.speed
    wrote = f", takes {speed.write_bytes_per_second / 1e6:,.0f} MB/s" if speed.written_bytes else ""
    fast = f"{wrote}, an fsync {disk.sync_seconds * 1e3:.1f} ms"
    text = f"{disk.folder} ({disk.kind or 'unknown'}) has {_gib(disk.free_bytes)} free{fast}"
    slow = speed.written_bytes and speed.write_bytes_per_second < SLOW_DISK_BYTES_PER_SECOND
    if slow or disk.sync_seconds > LONG_SYNC_SECONDS:
        yield Finding("disk", "note", f"{text}: checkpoints will take long", "put --out on a local disk")
    else:
        yield Finding("disk", "ok", text)
    if speed.rows_read:
        text = f"rows on the disk (run.host_memory) are read at {count(speed.rows_per_second)} a second"
        if speed.rows_per_second < FEW_ROWS_PER_SECOND:
            remedy = "put run.disk on an SSD; adaptive-rec plan shows how many rows a step reads"
            yield Finding("disk", "note", f"{text}: steps will wait for them", remedy)
        else:
            yield Finding("disk", "ok", text)
    if disk.kind in PASSING_FILE_SYSTEMS:
        text = f"{disk.folder} is in memory ({disk.kind}): checkpoints are lost when it restarts, and take its memory"
        yield Finding("disk", "note", text, "put --out on a disk")
    if disk.free_bytes < LITTLE_DISK_BYTES:
        text = f"{disk.folder} has only {_gib(disk.free_bytes)} free, and a checkpoint is as large as the tables"
        yield Finding("disk", "note", text, "free some space, or give another --out")


def _service(facts: Facts) -> Iterator[Finding]:
    if facts.port_error:
        text = f"port {facts.port} cannot be listened on: {facts.port_error}"
        yield Finding("service", "note", text, "a run takes the next free port; --port N names another")
    else:
        yield Finding("service", "ok", f"port {facts.port} is free")
    for path, kind, mode, ours in facts.runtime_files:
        wanted = 0o700 if kind == "folder" else 0o600
        if not ours:
            text = f"{path} belongs to another user, and tokens of runs would be kept there"
            yield Finding(
                "service", "problem", text, "have it removed, or set XDG_RUNTIME_DIR to a folder that you own"
            )
        elif mode & 0o077:
            text = f"{path} must have mode {wanted:o}, it has {mode:o}: others could read your tokens there"
            yield Finding("service", "problem", text, f"chmod {wanted:o} {path}, and restart the runs under way")
    if facts.runtime_files and all(ours and not mode & 0o077 for _, _, mode, ours in facts.runtime_files):
        yield Finding("service", "ok", f"{facts.runtime_files[0][0]} can be read only by you")


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.clock_ahead_seconds > 0:
        text = f"the clock is at least {facts.clock_ahead_seconds:,.0f} s behind: files of this package are dated in the future"
        yield Finding("clock", "note", text, "set the clock (timedatectl set-ntp true); times of events will be wrong")
    else:
        yield Finding("clock", "ok", "no file of this package is dated in the future")


def satisfies(version: str, wanted: str) -> bool:
    """Return whether a version is one of those wanted, such as ``>=2.10,<2.16``; builds and pre-releases count."""
    return SpecifierSet(wanted).contains(version, prereleases=True)


def runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Return whether a GPU can run code built for any of the architectures.

    It runs machine code (sm) of its own generation that is not newer, and older intermediate code (compute), which the driver
    translates.
    """
    for architecture in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", architecture)
        if match is None:
            continue
        kind, major, minor = match[1], int(match[2]), int(match[3])
        if kind == "compute" and (major, minor) <= capability:
            return True
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
    return not architectures


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
