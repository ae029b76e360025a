"""How far preparing is, and what several stages need: checksums, shares of a total."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from adaptive_rec.data.prepare.meta import sha256_of


@dataclass(frozen=True)
class StageProgress:
    """How far a stage is."""

    stage: Literal["reading", "numbering", "writing", "checksums"]
    what: str
    done_ratio: float
    rows: int
    """Rows read so far, bad ones not counted."""


Told = Callable[[StageProgress], None]


def checksums(paths: list[Path], pool: ThreadPoolExecutor, told: Callable[[float], None]) -> list[str]:
    """SHA-256 of files, several at a time."""
    tell = counter(sum(path.stat().st_size for path in paths))
    return list(pool.map(lambda path: sha256_of(path, lambda read_bytes: told(tell(read_bytes))), paths))


def counter(total: int) -> Callable[[int], float]:
    """A function that adds up what it is given, from any thread, and returns the share of `total`."""
    lock, done = Lock(), 0

    def tell(amount: int) -> float:
        nonlocal done
        with lock:
            done += amount
            return min(1.0, done / max(1, total))

    return tell
