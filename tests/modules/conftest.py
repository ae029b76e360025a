"""Fixtures of all tests of the modules: double precision, and one core each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from adaptive_rec.embedding.disk import row_log


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """In float64 equal is equal, but for the order of sums."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _closed(closed_runtimes: None) -> None:
    """No thread of a runtime outlives its test."""


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on a disk go to files soon, and are read from there."""
    monkeypatch.setattr(row_log, "_LEAST_SEGMENT_BYTES", 8192)
    monkeypatch.setattr(row_log, "_KEPT_BYTES", 0)
