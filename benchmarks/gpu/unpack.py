"""Unpacks on a GPU machine what `carry.py` has packed for it. Standard library only, but for zstd, which comes along.

Files of the package get the modification time that compiled kernels are kept for (`caches.py`).

    python3 -m benchmarks.gpu.unpack FOLDER      done by `make gpu-first` where CARRIED names the folder

May be called several times, with other parts of the same folder each time, where not all fit in one transfer.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.gpu import caches

UNPACKED = Path(tempfile.gettempdir()) / "adaptive-rec-carried"
MANIFEST = "carried.json"


def unpack(carried: Path, to: Path = UNPACKED) -> dict[str, str]:
    """Unpack wheels, data, whole archives and compiled kernels; return the environment variables of processes that are to
    use them."""
    site, parts, data = to / "site", to / "parts", to / "data"
    for folder in (site, parts, data):
        folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(carried.glob("wheels/*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for path in carried.glob("data/*"):
        shutil.copy(path, data)
    for path in carried.glob("parts/*"):
        shutil.copy(path, parts)
    caches.fix_times()
    if (carried / caches.PACKED).exists():
        try:
            caches.put_back(carried / caches.PACKED)
        except (OSError, EOFError, tarfile.TarError, ValueError) as error:
            print(f"unpack: kernels will be compiled anew, {caches.PACKED} cannot be read: {error}", file=sys.stderr)
    for name, wanted in json.loads((carried / MANIFEST).read_text(encoding="utf-8"))["archives"].items():
        if (to / f"{name}.unpacked").exists():
            continue
        missing = [part for part in wanted if not (parts / part).exists()]
        if missing:
            print(f"unpack: {name} is left out until {', '.join(missing)} is here", file=sys.stderr)
            continue
        _join([parts / part for part in wanted], site)
        (to / f"{name}.unpacked").touch()
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "ADAPTIVE_REC_TEST_DATA": str(data)}


def _join(parts: list[Path], site: Path) -> None:
    """Unpack a tar archive that was compressed by zstd and cut into parts."""
    sys.path.insert(0, str(site))
    from backports import zstd

    with tempfile.TemporaryFile() as whole:
        for part in parts:
            whole.write(part.read_bytes())
        whole.seek(0)
        options: Any = {zstd.DecompressionParameter.window_log_max: 27}
        with zstd.open(whole, "rb", options=options) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            archive.extractall(site, filter="data")


if __name__ == "__main__":
    for key, value in unpack(Path(sys.argv[1])).items():
        print(f"export {key}={value}")
