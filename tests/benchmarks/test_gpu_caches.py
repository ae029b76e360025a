"""Kernels that were compiled on one machine are loaded on the next one, and those of other sources never are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import caches, unpack

ROOT = Path(__file__).parents[2]

COMPILED = """
import numpy as np
from adaptive_rec.kernels.crc import crc32
crc32(np.zeros(8, np.uint8), 0, 8)
print(sum(crc32.stats.cache_hits.values()), sum(crc32.stats.cache_misses.values()))
"""


def machine(folder: Path) -> Path:
    """A checkout in a folder, with a home of its own."""
    nothing = shutil.ignore_patterns("__pycache__", "*.html", "*.js")
    for name in ("adaptive_rec", "benchmarks/gpu", "benchmarks/common"):
        shutil.copytree(ROOT / name, folder / name, ignore=nothing)
    (folder / "carried").mkdir()
    (folder / "carried" / unpack.MANIFEST).write_text(json.dumps({"archives": {}}))
    return folder


def python(where: Path, *words: str) -> str:
    environment = {**os.environ, "HOME": str(where / "home"), "TMPDIR": str(where), "PYTHONPATH": str(where)}
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *words], cwd=where, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(where: Path) -> list[int]:
    """Take a kernel into use; [loaded from the cache, compiled]."""
    return list(map(int, python(where, "-c", COMPILED).split()))


@pytest.mark.slow
def test_kernels_are_taken_from_what_another_checkout_has_packed(tmp_path: Path) -> None:
    one, other = (machine(tmp_path / name) for name in ("one", "other"))
    refused = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.carry", "carried", "--caches"], cwd=one, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "unpack" in refused.stderr
    python(one, "-m", "benchmarks.gpu.unpack", "carried")
    assert compiled(one) == [0, 1]
    group = one / "home/.triton/cache/KEY/__grp__rows.json"
    group.parent.mkdir(parents=True)
    group.write_text(json.dumps({"child_paths": {"rows.cubin": str(group.parent / "rows.cubin")}}))
    (group.parent / "rows.cubin").write_bytes(b"code")
    python(one, "-m", "benchmarks.gpu.carry", "carried", "--caches")
    shutil.copy(one / "carried" / caches.PACKED, other / "carried")
    assert python(other, "-m", "benchmarks.gpu.unpack", "carried").startswith("export ")
    assert compiled(other) == [1, 0]
    there = json.loads((other / group.relative_to(one)).read_text())["child_paths"]["rows.cubin"]
    assert there == str(other / "home/.triton/cache/KEY/rows.cubin")
    assert Path(there).read_bytes() == b"code"
    whole = (one / "carried" / caches.PACKED).read_bytes()
    (other / "carried" / caches.PACKED).write_bytes(whole[: len(whole) // 2])
    assert python(other, "-m", "benchmarks.gpu.unpack", "carried").startswith("export ")


def test_a_source_that_changes_and_keeps_its_length_is_another_one(tmp_path: Path) -> None:
    where = machine(tmp_path)
    source = where / "adaptive_rec" / "errors.py"
    source.write_text("WORD = 'one'\n")
    python(where, "-m", "benchmarks.gpu.unpack", "carried")
    read = ("-c", "import importlib.util as u; s = u.spec_from_file_location('e', 'adaptive_rec/errors.py'); "
            "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.WORD)")  # fmt: skip
    assert python(where, *read) == "one\n"
    source.write_text("WORD = 'two'\n")
    python(where, "-m", "benchmarks.gpu.unpack", "carried")
    assert python(where, *read) == "two\n"
