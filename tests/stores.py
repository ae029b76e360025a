"""Stores for tests, by what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adaptive_rec.embedding.build import build
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.store_settings import OnDevice, OnDisk
from adaptive_rec.placement import RowSpace


def cpu_store(
    space: RowSpace, rule: Any, seed: int, dtype: torch.dtype, budget_bytes: int, monitored: bool, folder: Path | None = None
) -> EmbeddingStore:
    """A store of a CPU, its cold rows in host memory or in a folder."""
    disk = None if folder is None else OnDisk(folder)
    return build(space, rule, seed, dtype, budget_bytes, monitored, disk=disk)


def device_store(
    space: RowSpace, rule: RowRule, seed: int, dtype: torch.dtype, streams: Any, budget_bytes: int, monitored: bool,
    copy_threads: int = 1, classifies: bool = False, cold_rows: str = "staged", disk: OnDisk | None = None,
) -> EmbeddingStore:  # fmt: skip
    """A store of a device, its cold rows in host memory, or there and in a folder."""
    device = OnDevice(streams, copy_threads, classifies, cold_rows)
    return build(space, rule, seed, dtype, budget_bytes, monitored, disk=disk, device=device)
