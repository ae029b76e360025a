"""Compiler options of the kernels, the folder of their compiled code, and their threads.

The cache lies in a folder named by a hash of these sources: Numba's own cache does not notice when a function called from
another file changes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Return the folder of compiled kernels; NUMBA_CACHE_DIR overrides it."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "adaptive-rec" / f"numba-{digest.hexdigest()[:16]}"


if "NUMBA_CACHE_DIR" not in os.environ:
    import numba

    numba.config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
"""Floating-point liberties of every kernel. Full fastmath would fold isnan() to False."""

JIT: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
"""Options of every serial kernel; they release the GIL, so any thread may run them."""

JIT_PART: dict[str, Any] = {**JIT, "_nrt": False}
"""Options of parts of kernels that are called for every row and make no arrays. With Numba's runtime each call would count
references to its arrays, atomically and in shared memory (numba issue 2350): copying a row took three times as long.
"""

JIT_INLINE: dict[str, Any] = {**JIT_PART, "forceinline": True}
"""Options of such parts whose arguments would cost more than their work."""

JIT_PARALLEL: dict[str, Any] = {**JIT, "parallel": True}
"""Options of kernels that run on several threads."""

PARTS_PER_THREAD = 4
"""Parts of the work for each thread, so that no thread waits long for another."""

MIN_LOOKUPS = 4096
"""Below this number of lookups, waking a second thread costs more than it saves."""


def worth_waking(threads: int, lookups: int) -> int:
    """Return how many of these threads a batch should use: one, or all."""
    return threads if lookups >= MIN_LOOKUPS else 1


def usable_threads(wanted: int) -> int:
    """Return how many of the wanted threads a parallel kernel may use: one where Numba has no OpenMP.

    Numba's other layer, workqueue, is not for several Python threads, as its documentation says.
    """
    import numba

    try:
        from numba.np.ufunc import omppool  # type: ignore[attr-defined]  # noqa: F401 - only to see whether it can be loaded
    except ImportError:
        return 1
    numba.config.THREADING_LAYER = "omp"  # type: ignore[attr-defined]
    return min(wanted, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
