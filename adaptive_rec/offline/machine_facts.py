"""Facts of this machine, looked up, tried out or measured for `doctor`, which judges them."""

from __future__ import annotations

import errno
import importlib.metadata
import mmap
import os
import platform
import re
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from adaptive_rec.kernels.jit import cache_folder
from adaptive_rec.live import runtime_file
from adaptive_rec.offline.disk_speed import TRIED_BYTES, DiskSpeed, measure_disk
from adaptive_rec.system.host_memory import available_bytes
from adaptive_rec.system.process_use import core_shares

PACKAGE = "adaptive-rec"
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_THREADING_LAYER",
)  # fmt: skip
TORCHREC = "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Cuda:
    """Torch's and the system's view of the GPUs."""

    built_for: str | None = None
    """CUDA version that torch was built for; None for a CPU build."""
    driver: str | None = None
    """Version of the system's NVIDIA driver; None without one."""
    error: str = ""
    """Torch's reason why it cannot use a device."""
    devices: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Name and compute capability of each device that torch can use."""
    architectures: tuple[str, ...] = ()
    """Architectures that torch has code for: sm_90, compute_90, ..."""
    triton: str | None = None
    pinned: str = ""
    """Reason why pinned memory is not available; empty where it is."""


@dataclass(frozen=True)
class FileSystemFacts:
    """The file system of a run's directory."""

    folder: str
    error: str = ""
    kind: str = ""
    free_bytes: int = 0
    sync_seconds: float = 0.0
    """Duration of an fsync after one small write."""
    speed: DiskSpeed = DiskSpeed()


@dataclass(frozen=True)
class Facts:
    """All facts that `doctor` judges. A fact that could not be found out is None."""

    python: str
    versions: dict[str, str | None]
    """Versions of the required libraries; None where one is not installed."""
    required: dict[str, str]
    """Accepted versions, such as ``>=2.11,<2.16``."""
    cuda: Cuda
    openmp: bool
    """Whether Numba has OpenMP."""
    numba_cache_error: str
    """Reason why compiled kernels cannot be kept; empty where they can."""
    cores: int
    """Cores that this process may use."""
    core_share: float | None
    """Cores whose time the container is given; None without a limit."""
    environment: dict[str, str]
    """Variables that set the number of threads, or how they wait."""
    memory_total_bytes: int
    memory_available_bytes: int
    shared_memory_error: str
    """Reason why memory without a name cannot be shared; empty where it can."""
    dev_shm_bytes: int | None
    disk: FileSystemFacts
    port: int
    port_error: str
    """Reason why the port cannot be listened on; empty where it can."""
    runtime_files: list[tuple[str, str, int, bool]] = field(default_factory=list)
    """The folder for runtime files and its contents: path, kind ("folder", "file"), mode, and whether this user owns it."""
    clock_ahead_seconds: float = 0.0
    """How far the newest file of this package lies in the future."""
    torchrec_versions: dict[str, str] = field(default_factory=dict)
    """Versions of those packages of TorchRec and FBGEMM that are installed."""


def collect_facts(folder: Path, port: int) -> Facts:
    """Collect all facts. Takes a few seconds, as it loads torch, and writes up to 256 MiB into the folder and reads them."""
    required = requirements()
    return Facts(
        python=platform.python_version(),
        versions={name: version_of(name) for name in required if name != "python"},
        required=required,
        cuda=cuda(),
        openmp=has_openmp(),
        numba_cache_error=why_not_writable(Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder())),
        cores=len(os.sched_getaffinity(0)),
        core_share=next(core_shares(Path("/sys/fs/cgroup")), None),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        memory_total_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_available_bytes=available_bytes(),
        shared_memory_error=why_not_shared(),
        dev_shm_bytes=size_of_dev_shm(),
        disk=disk(folder),
        port=port,
        port_error=why_not_listening(port),
        runtime_files=runtime_files(),
        clock_ahead_seconds=newest_source() - time.time(),
        torchrec_versions={name: version for name in TORCHREC if (version := version_of(name)) is not None},
    )


def requirements() -> dict[str, str]:
    """Return the accepted versions of Python and each required library by name; nothing if the package is not installed."""
    try:
        found = importlib.metadata.metadata(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return {}
    needed = {"python": found["Requires-Python"] or ""}
    for each in map(Requirement, found.get_all("Requires-Dist") or []):
        if each.marker is None or each.marker.evaluate({"extra": ""}):  # a marker of an extra asks for its name
            needed[each.name] = str(each.specifier)
    return needed


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda() -> Cuda:
    driver = driver_version()
    try:
        import torch
    except ImportError:
        return Cuda(driver=driver)
    devices, pinned, error = [], "", ""
    try:
        if torch.cuda.is_available():
            for number in range(torch.cuda.device_count()):
                devices.append((torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number)))
            pinned = why_not_pinned()
        elif torch.version.cuda is not None and driver is not None:
            torch.cuda.init()
    except (RuntimeError, AssertionError) as failure:
        error = str(failure).splitlines()[0]
    known = tuple(torch.cuda.get_arch_list()) if devices else ()
    return Cuda(torch.version.cuda, driver, error, tuple(devices), known, version_of("triton"), pinned)


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of the NVIDIA driver; None where the system has none."""
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return found[1] if found else "unknown"


def why_not_pinned() -> str:
    import torch

    try:
        torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def has_openmp() -> bool:
    from adaptive_rec.kernels.jit import usable_threads

    return usable_threads(2) > 1 or len(os.sched_getaffinity(0)) == 1


def why_not_shared() -> str:
    """Return why memory without a name cannot be shared with another process; empty where it can."""
    try:
        handle = os.memfd_create("adaptive-rec-doctor")
        try:
            os.ftruncate(handle, _PIECE_BYTES)
            with mmap.mmap(handle, _PIECE_BYTES) as block:
                block[0] = 1
        finally:
            os.close(handle)
    except (AttributeError, OSError) as error:
        return str(error)
    return ""


def size_of_dev_shm() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def nearest_existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)


def why_not_writable(folder: Path) -> str:
    """Return why files cannot be created in a folder, or in its nearest parent that exists; empty where they can."""
    folder = nearest_existing(folder)
    if not folder.is_dir():
        return f"{folder} is no folder"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def disk(folder: Path, size_bytes: int = TRIED_BYTES) -> FileSystemFacts:
    """Write files into the nearest folder that exists, read rows of them, and return how quick that was. They have no name."""
    folder = nearest_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            start = time.perf_counter()
            file.write(b"x")
            os.fsync(file.fileno())
            sync_seconds = time.perf_counter() - start
        room = os.statvfs(folder)
        speed = measure_disk(folder, size_bytes)
    except OSError as error:
        return FileSystemFacts(str(folder), error.strerror or str(error))
    return FileSystemFacts(str(folder), "", file_system(folder), room.f_frsize * room.f_bavail, sync_seconds, speed)


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the kind of file system a folder is on; empty where the system does not list it."""
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    path = folder.resolve()
    around = [(len(words[1]), words[2]) for words in lines if len(words) > 2 and path.is_relative_to(words[1])]
    return max(around, default=(0, ""))[1]


def why_not_listening(port: int) -> str:
    """Return why a port of this machine cannot be listened on; empty where it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
            tried.listen(1)
        except OSError as error:
            return "it is taken" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return ""


def runtime_files() -> list[tuple[str, str, int, bool]]:
    """Return the folder for runtime files and the files in it: path, kind, mode, and whether this user owns it."""
    found: list[tuple[str, str, int, bool]] = []
    folder = runtime_file.folder()
    with suppress(OSError):
        for path in (folder, *sorted(folder.glob("*.json"))):
            about = path.lstat()
            ours = about.st_uid == os.geteuid() and not stat.S_ISLNK(about.st_mode)
            kind = "folder" if path == folder else "file"
            found.append((str(path), kind, stat.S_IMODE(about.st_mode), ours))
    return found


def newest_source() -> float:
    """Return when the newest source file of this package was written."""
    return max(path.stat().st_mtime for path in Path(__file__).parents[1].rglob("*.py"))
