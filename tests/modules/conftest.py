"""What all tests of the modules have: double precision, and a core each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from adaptive_rec.modules.runtime import EmbeddingRuntime


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
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread of a runtime outlives its test: other tests look for theirs among all threads."""
    made: list[EmbeddingRuntime] = []
    begin = EmbeddingRuntime.__init__

    def kept(self: EmbeddingRuntime, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(EmbeddingRuntime, "__init__", kept)
    yield
    for runtime in made:
        runtime.close()
