"""A cell of a benchmark on the CPU in a process of its own: its memory is gone with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec.system.openmp import SPINS, wait_briefly
from benchmarks.common import machine


def run_apart(module: str, cell: Any, words: list[str], path: Path) -> dict[str, Any]:
    """What ``python -m module --cell NAME words`` leaves in `path`, or why there is nothing. `cell` is a dataclass with a name;
    OpenMP's threads wait as it says (`briefly`), whatever this process was told."""
    path.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", SPINS)}
    if cell.briefly:
        wait_briefly(environment)
    command = [sys.executable, "-m", module, "--cell", cell.name, *words]
    status = subprocess.run(command, cwd=machine.ROOT, env=environment).returncode
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {"cell": asdict(cell), "error": f"its process left no result, exit status {status}"}
    return found
