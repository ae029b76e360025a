"""Fixtures of all tests of the modules: double precision, and one core each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


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
