"""Packs what `make gpu-first` needs on a machine that reaches no package index: wheels, the Criteo sample, FBGEMM.

    python -m benchmarks.gpu.carry FOLDER               wheels of our own imports and of the tests, and the sample
    python -m benchmarks.gpu.carry FOLDER --rivals      FBGEMM and TorchRec too, in parts
    python -m benchmarks.gpu.carry FOLDER --caches      after a run there: kernels that were compiled, beside what FOLDER holds

That machine is taken to have Python 3.12, torch 2.11 with CUDA 13, Triton, Numba and NumPy. No file is larger than 32 MiB, so
that a part and the repository are under 64 MiB together; `unpack.py` joins parts that came in several transfers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from benchmarks.common.command import ROOT, data_folder, parser
from benchmarks.gpu import caches
from benchmarks.gpu.unpack import MANIFEST

SAMPLE = "criteo_kaggle_sample_137k.tsv.zst"
OURS = (
    "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions", "backports.zstd", "safetensors",
    "packaging", "tomli-w", "prometheus-client", "rich", "markdown-it-py", "mdurl", "pygments", "markupsafe",
    "fastapi", "starlette", "uvicorn", "click", "annotated-doc", "httpx2", "httpcore2", "h11", "anyio", "idna", "certifi",
    "truststore", "sniffio",
    "pytest", "pluggy", "iniconfig", "pytest-timeout", "pytest-xdist", "execnet", "hypothesis", "sortedcontainers",
)  # fmt: skip
"""In the versions of constraints.txt."""
RIVALS = (
    "torchrec==1.6.1", "tensordict", "pyvers", "importlib-metadata", "zipp", "orjson", "cloudpickle", "pyre-extensions",
    "typing-inspect", "mypy-extensions", "iopath", "portalocker", "torchmetrics", "lightning-utilities", "tqdm",
)  # fmt: skip
FBGEMM = "fbgemm-gpu==1.6.0"
"""The one that was built for torch 2.11 and CUDA 13."""
WANTED_RULES = (b"rowwise_adagrad", b"adam")
OTHER_RULES = (b"lamb", b"lars", b"adagrad", b"sgd", b"none")
UNUSED_LIBRARIES = ("backward_vbe", "backward_gwd", "backward_dense", "tbe_inference", "tbe_index_select")
"""Bags of a length of their own for each rank, gradients scaled by frequency, dense gradients, inference, selection: no rival
here uses them. Their code for the GPU is left out; a call of it would fail with an error."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PART_BYTES = 32 << 20
WINDOW_LOG = 27
FATBIN_MAGIC, FATBIN_VERSION, FATBIN_HEADER = 0xBA55ED50, 1, 16
ENTRY_HEADER_BYTES = 64


def main() -> int:
    line = parser(__doc__, "benchmarks.gpu.carry")
    line.add_argument("folder", type=Path)
    line.add_argument("--rivals", action="store_true", help="FBGEMM and TorchRec too")
    line.add_argument("--python", default="3.12", help="version of Python there")
    line.add_argument("--arch", type=int, default=90, help="compute capability whose code of FBGEMM is kept, e.g. 90")
    line.add_argument("--caches", action="store_true", help="pack the compiled kernels of this machine, and nothing else")
    args = line.parse_args()
    if args.caches:
        try:
            caches.pack(args.folder / caches.PACKED)
        except ValueError as reason:
            print(f"carry: {reason}", file=sys.stderr)
            return 2
    else:
        carry(args)
    total = 0
    for path in sorted(path for path in args.folder.rglob("*") if path.is_file()):
        total += path.stat().st_size
        print(f"{path.stat().st_size / 2**20:7.2f} MiB  {path.relative_to(args.folder)}")
    print(f"{total / 2**20:7.2f} MiB in all")
    return 0


def carry(args: argparse.Namespace) -> None:
    shutil.rmtree(args.folder, ignore_errors=True)
    wheels, data, parts = (args.folder / name for name in ("wheels", "data", "parts"))
    for folder in (wheels, data, parts):
        folder.mkdir(parents=True)
    (args.folder / ".gitignore").write_text("*\n", encoding="utf-8")
    download([pinned(name) for name in OURS], wheels, args.python)
    shutil.copy(data_folder() / SAMPLE, data)
    archives = {}
    if args.rivals:
        download(list(RIVALS), wheels, args.python)
        archives["fbgemm"] = [path.name for path in pack_fbgemm(parts, args.python, args.arch)]
    (args.folder / MANIFEST).write_text(json.dumps({"archives": archives}), encoding="utf-8")


def pinned(name: str) -> str:
    """Return the requirement with the version that the tests ran with, where there is one."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    same = [line for line in lines if line.partition("==")[0].lower().replace("_", "-") == name]
    return same[0] if same else name


def download(requirements: list[str], to: Path, python: str) -> None:
    """Fetch wheels as they are for the machine there, without what they need: that is named in the lists above."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "--python-version", python,
            "--implementation", "cp", *platforms, "-d", str(to), *requirements,
        ],
        check=True,
    )  # fmt: skip


# FBGEMM --------------------------------------------------------------------------------------------------------------


def pack_fbgemm(to: Path, python: str, arch: int) -> list[Path]:
    """FBGEMM as parts of one compressed archive, with the machine code of one kind of GPU only."""
    with tempfile.TemporaryDirectory(dir=to) as folder:
        download([FBGEMM], Path(folder), python)
        (wheel,) = Path(folder).glob("*.whl")
        whole = Path(folder) / "fbgemm.tar.zst"
        with whole.open("wb") as file:
            compress(wheel, file, arch)
        return cut(whole, to, "fbgemm")


def compress(wheel: Path, file: IO[bytes], arch: int) -> None:
    from backports import zstd

    parameter = zstd.CompressionParameter
    options: Any = {
        parameter.compression_level: 19, parameter.window_log: WINDOW_LOG, parameter.enable_long_distance_matching: 1,
    }  # fmt: skip
    with (
        zipfile.ZipFile(wheel) as archive,
        zstd.open(file, "wb", options=options) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
        tempfile.TemporaryDirectory(dir=wheel.parent) as folder,
    ):
        for name in archive.namelist():
            path = Path(archive.extract(name, folder))
            if path.suffix == ".so":
                path.write_bytes(without_other_code(bytearray(path.read_bytes()), arch, path.stem))
            tar.add(path, name)
            path.unlink()


def without_other_code(library: bytearray, arch: int, name: str = "") -> bytearray:
    """Write zeros over the machine code of other GPUs, and over what no rival runs. Headers stay, so that the loader still passes
    over it; code is not read before its first use (lazy loading, the default since CUDA 12.2)."""
    unused, passes = name.endswith(UNUSED_LIBRARIES), name.endswith(("training_backward", "training_forward"))
    for found, start, size in fat_entries(library):
        if found != arch or unused or (passes and not is_wanted(bytes(library[start : start + size]))):
            library[start : start + size] = bytes(size)
    return library


def is_wanted(code: bytes) -> bool:
    """Whether code of FBGEMM's passes, which names its kernels, is of a rule that is compared and of bags without weights."""
    if b"weighted" in code and b"unweighted" not in code:
        return False
    return any(rule in code for rule in WANTED_RULES) or not any(rule in code for rule in OTHER_RULES)


def fat_entries(library: bytearray) -> Iterator[tuple[int, int, int]]:
    """(compute capability, first byte, bytes) of each piece of machine code or PTX in a library.

    A container has a header of 16 bytes (magic, version, its own length, the length of all entries), then entries: kind,
    a flag, length of the header, length of the code, and at byte 28 the capability times 10.
    """
    magic, at = struct.pack("<I", FATBIN_MAGIC), 0
    while (at := library.find(magic, at)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", library, at)
        if (version, header) != (FATBIN_VERSION, FATBIN_HEADER):
            at += len(magic)
            continue
        entry, end = at + header, at + header + size
        while entry + ENTRY_HEADER_BYTES <= end:
            _, _, entry_header, entry_size = struct.unpack_from("<HHIQ", library, entry)
            (arch,) = struct.unpack_from("<I", library, entry + 28)
            yield arch, entry + entry_header, entry_size
            entry += entry_header + entry_size
        at = end


def cut(whole: Path, to: Path, name: str) -> list[Path]:
    parts: list[Path] = []
    with whole.open("rb") as file:
        while piece := file.read(PART_BYTES):
            parts.append(to / f"{name}.{len(parts) + 1}")
            parts[-1].write_bytes(piece)
    return parts


if __name__ == "__main__":
    sys.exit(main())
