"""What of a machine stands in a run's way, or slows it down: facts are gathered once, then judged, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "note", "problem"]

SLOW_DISK_BYTES_PER_SECOND = 50e6
LITTLE_DISK_BYTES = 2 << 30
LITTLE_MEMORY_BYTES = 2 << 30
LONG_SYNC_SECONDS = 1.0
PASSING_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Finding:
    area: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Cuda:
    """What torch and the system know of a GPU."""

    built_for: str | None = None
    """CUDA version that torch was built for; None of a CPU build."""
    driver: str | None = None
    """Of the system's NVIDIA driver; None where there is none."""
    error: str = ""
    """Why torch cannot use a device, in its own words."""
    devices: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Name and compute capability of each that torch can use."""
    architectures: tuple[str, ...] = ()
    """Those that torch has code for: sm_90, compute_90, ..."""
    triton: str | None = None
    pinned: str = ""
    """Why pinned memory cannot be had; empty where it can."""


@dataclass(frozen=True)
class FileSystemFacts:
    """The file system of a run's directory."""

    folder: str
    error: str = ""
    kind: str = ""
    free_bytes: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    """With the last fsync."""
    sync_seconds: float = 0.0
    """Of an fsync after one small write."""


@dataclass(frozen=True)
class Facts:
    """All that is judged. What could not be found out is None."""

    python: str
    versions: dict[str, str | None]
    """Of the libraries that are needed; None where one is not installed."""
    required: dict[str, str]
    """What versions of them will do, such as ``>=2.10,<2.16``."""
    cuda: Cuda
    openmp: bool
    """Whether Numba has OpenMP."""
    numba_cache_error: str
    """Why compiled kernels cannot be kept; empty where they can."""
    cores: int
    """That this process may use."""
    core_share: float | None
    """How many of them the container is given time on; None: no limit."""
    environment: dict[str, str]
    """Variables that say how many threads there are, or how they wait."""
    memory_total_bytes: int
    memory_available_bytes: int
    shared_memory_error: str
    """Why memory without a name cannot be shared; empty where it can."""
    dev_shm_bytes: int | None
    disk: FileSystemFacts
    port: int
    port_error: str
    """Why it cannot be listened on; empty where it can."""
    runtime_files: list[tuple[str, str, int, bool]] = field(default_factory=list)
    """The folder for runtime files and what is in it: path, kind ("folder", "file"), mode, and whether it is ours."""
    clock_ahead_seconds: float = 0.0
    """How far the newest file of this package lies in the future."""


def findings(facts: Facts) -> list[Finding]:
    """Everything that was looked at, in order."""
    parts: list[Callable[[Facts], Iterator[Finding]]] = [
        _versions, _cuda, _kernels, _threads, _memory, _disk, _service, _clock
    ]  # fmt: skip
    return [finding for part in parts for finding in part(facts)]


def _versions(facts: Facts) -> Iterator[Finding]:
    wanted = facts.required.get("python", "")
    told = f"Python {facts.python}"
    if satisfies(facts.python, wanted):
        yield Finding("versions", "ok", told)
    else:
        yield Finding("versions", "problem", f"{told}, must be {wanted}", "make the environment with another Python")
    for name, version in facts.versions.items():
        wanted = facts.required.get(name, "")
        if version is None:
            yield Finding("versions", "problem", f"{name} is not installed", f"pip install '{name}{wanted}'")
        elif satisfies(version, wanted):
            yield Finding("versions", "ok", f"{name} {version}")
        else:
            text = f"{name} must be {wanted}, is {version}"
            yield Finding("versions", "problem", text, f"pip install '{name}{wanted}'")


def _cuda(facts: Facts) -> Iterator[Finding]:
    cuda = facts.cuda
    if cuda.built_for is None:
        if cuda.driver is None:
            yield Finding("device", "ok", "no GPU, and a torch for CPUs")
        else:
            text = f"there is an NVIDIA driver ({cuda.driver}), but torch is a build for CPUs"
            yield Finding("device", "problem", text, "install a torch that is built for CUDA, or take run.device=cpu")
        return
    if not cuda.devices:
        if cuda.driver is None:
            yield Finding("device", "ok", f"no GPU (torch is built for CUDA {cuda.built_for})")
            return
        why = f": {cuda.error}" if cuda.error else ""
        text = f"torch, built for CUDA {cuda.built_for}, cannot use the GPU under driver {cuda.driver}{why}"
        remedy = "take a newer driver or a torch built for an older CUDA; see that CUDA_VISIBLE_DEVICES names a GPU"
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
        remedy = "end what takes it; adaptive-rec train --dry-run tells what a run needs"
        yield Finding("memory", "note", f"only {text}", remedy)
    else:
        yield Finding("memory", "ok", text)
    if facts.shared_memory_error:
        text = f"memory cannot be shared with the dashboard: {facts.shared_memory_error}"
        yield Finding(
            "memory", "problem", text, "train with --no-serve, or allow memfd_create in the container's profile"
        )
    elif facts.dev_shm_bytes is not None:
        told = f"/dev/shm holds {_gib(facts.dev_shm_bytes)}, which nothing depends on"
        yield Finding("memory", "ok", f"memory can be shared without a name; {told}")


def _disk(facts: Facts) -> Iterator[Finding]:
    disk = facts.disk
    if disk.error:
        text = f"{disk.folder} cannot be written: {disk.error}"
        yield Finding("disk", "problem", text, "give a directory that you may write with --out")
        return
    speed = disk.written_bytes / max(disk.write_seconds, 1e-9)
    text = f"{disk.folder} ({disk.kind or 'unknown'}) takes {speed / 1e6:,.0f} MB/s, an fsync {disk.sync_seconds * 1e3:.1f} ms"
    if speed < SLOW_DISK_BYTES_PER_SECOND or disk.sync_seconds > LONG_SYNC_SECONDS:
        yield Finding("disk", "note", f"{text}: checkpoints will take long", "put --out on a local disk")
    else:
        yield Finding("disk", "ok", text)
    if disk.kind in PASSING_FILE_SYSTEMS:
        text = f"{disk.folder} is in memory ({disk.kind}): checkpoints do not outlive the machine, and take its memory"
        yield Finding("disk", "note", text, "put --out on a disk")
    if disk.free_bytes < LITTLE_DISK_BYTES:
        text = f"{disk.folder} has only {_gib(disk.free_bytes)} free, and a checkpoint is as large as the tables"
        yield Finding("disk", "note", text, "make room, or give another --out")


def _service(facts: Facts) -> Iterator[Finding]:
    if facts.port_error:
        text = f"port {facts.port} cannot be listened on: {facts.port_error}"
        yield Finding("service", "note", text, "a run takes the next free port; --port N names another")
    else:
        yield Finding("service", "ok", f"port {facts.port} is free")
    for path, kind, mode, ours in facts.runtime_files:
        wanted = 0o700 if kind == "folder" else 0o600
        if not ours:
            text = f"{path} belongs to somebody else, and tokens of runs would be kept there"
            yield Finding("service", "problem", text, "have it removed, or set XDG_RUNTIME_DIR to a folder of yours")
        elif mode & 0o077:
            text = f"{path} must have mode {wanted:o}, it has {mode:o}: others could meet your tokens there"
            yield Finding("service", "problem", text, f"chmod {wanted:o} {path}, and start runs under way anew")
    if facts.runtime_files and all(ours and not mode & 0o077 for _, _, mode, ours in facts.runtime_files):
        yield Finding("service", "ok", f"{facts.runtime_files[0][0]} is for your eyes only")


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.clock_ahead_seconds > 0:
        text = (
            f"the clock is at least {facts.clock_ahead_seconds:,.0f} s behind: files of this package are of the future"
        )
        yield Finding("clock", "note", text, "set the clock (timedatectl set-ntp true); times of events will be wrong")
    else:
        yield Finding("clock", "ok", "no file of this package is of the future")


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version is one of those wanted, such as ``>=2.10,<2.16``; what is no plain number in it is left out."""
    return all(_holds(numbers(version), rule.strip()) for rule in wanted.split(",") if rule.strip())


def _holds(found: tuple[int, ...], rule: str) -> bool:
    match = re.fullmatch(r"(>=|<=|==|!=|<|>|~=)\s*([\w.*+!-]+)", rule)
    if match is None:
        return True
    sign, bound = match[1], numbers(match[2])
    length = max(len(found), len(bound))
    mine, theirs = (part + (0,) * (length - len(part)) for part in (found, bound))
    if sign in ("==", "!="):
        same = mine[: len(bound)] == bound if match[2].endswith("*") else mine == theirs
        return same == (sign == "==")
    if sign == "~=":
        return mine >= theirs and mine[: len(bound) - 1] == bound[:-1]
    return {">=": mine >= theirs, "<=": mine <= theirs, "<": mine < theirs, ">": mine > theirs}[sign]


def numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def runs_on(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Whether a GPU runs some code: machine code of its generation that is not newer, or any older code to be translated."""
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
