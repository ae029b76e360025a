"""What Numba and Triton have compiled, packed on one machine for the next one of its kind. Standard library only.

Numba takes a kernel from its cache if the source file has the modification time that it had then. So `unpack.py` gives each file
of the package one that follows from its content, whenever it is called. Kernels of other sources are never taken for these: the
folder of Numba's cache is named by a hash of them (`adaptive_rec/kernels/jit.py`), as are Triton's.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adaptive_rec"
PACKED = "caches.tar.gz"
EARLIEST, TIMES = 1_600_000_000, 100_000_000
"""Modification times of sources: the first one, in seconds since 1970, and how many there are."""
GROUP = "__grp__"
"""Begins the names of Triton's files that name others by their whole paths."""


def folders() -> dict[str, Path]:
    """Where the caches lie, by their names in an archive."""
    home = Path.home()
    numba = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "adaptive-rec"
    return {"numba": numba, "triton": Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")}


def time_of(source: Path) -> int:
    return EARLIEST + zlib.crc32(source.read_bytes()) % TIMES


def fix_times() -> None:
    """Give each source of the package the modification time of its content."""
    for path in PACKAGE.rglob("*.py"):
        os.utime(path, (time_of(path), time_of(path)))


def times_are_fixed() -> bool:
    return all(path.stat().st_mtime == time_of(path) for path in PACKAGE.rglob("*.py"))


def pack(archive: Path) -> None:
    """Pack both caches. Raises ValueError where what lies in them could not be used."""
    if not times_are_fixed():
        raise ValueError(
            f"caches must be of sources that benchmarks.gpu.unpack has seen before they were compiled, got {PACKAGE}"
        )
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for name, folder in folders().items():
            for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
                if path.is_file() and (name != "numba" or path.suffix in (".nbi", ".nbc")):
                    tar.add(path, f"{name}/{path.relative_to(folder)}")


def put_back(archive: Path) -> None:
    """Unpack what `pack` has packed into the caches of this machine."""
    to = folders()
    with tarfile.open(archive) as tar:
        for member in tar:
            name, _, inside = member.name.partition("/")
            file = tar.extractfile(member)
            if file is None or name not in to or ".." in Path(inside).parts:
                continue
            path = to[name] / (with_folder_here(inside) if name == "numba" else inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            content = file.read()
            if path.name.startswith(GROUP):
                content = with_paths_here(content, path.parent)
            path.write_bytes(content)


def with_folder_here(inside: str) -> str:
    """A path in Numba's cache as it is here: below the hash of all kernels it names the sources' folder and hashes its path."""
    kernels, folder, file = inside.split("/", 2)
    name = folder.rpartition("_")[0]
    for sources in (PACKAGE, *PACKAGE.rglob(name)):
        if sources.name == name and sources.is_dir():
            return f"{kernels}/{name}_{hashlib.sha1(str(sources).encode()).hexdigest()}/{file}"
    return inside


def with_paths_here(content: bytes, folder: Path) -> bytes:
    """A group of Triton's files with the paths that they have here."""
    group = json.loads(content)
    group["child_paths"] = {name: str(folder / name) for name in group["child_paths"]}
    return json.dumps(group).encode()
