"""How far the kernels are from a user's loop: few functions stand between them, so that a traceback of a call is read at once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import adaptive_rec
from adaptive_rec.kernels import row_update
from adaptive_rec.modules.api.wrap import WrappedRuntime
from adaptive_rec.modules.loop import reading
from adaptive_rec.runtime.session import Session

PACKAGE = str(Path(adaptive_rec.__file__).parent)
FORWARD, STEP = 6, 8
"""Limits of the package's functions on the stack when a forward call, and a step, are at their kernels."""


class Frames:
    """The functions of the package between a test and a kernel, each time that it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, kernel: str) -> None:
        self.found: list[list[str]] = []
        self._kernel = getattr(module, kernel)
        monkeypatch.setattr(module, kernel, self._seen)

    def _seen(self, *given: Any, **named: Any) -> Any:
        names: list[str] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != __file__:
            if frame.f_code.co_filename.startswith(PACKAGE):
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        self.found.append(names[::-1])
        return self._kernel(*given, **named)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.one = nn.EmbeddingBag(50, 4, mode="sum", sparse=True), nn.Embedding(40, 4, sparse=True)

    def forward(self, ids: torch.Tensor, how: str) -> torch.Tensor:
        if how == "functions":
            bags = functional.embedding_bag(ids, self.bag.weight, mode="sum", sparse=True)
            return bags + functional.embedding(ids, self.one.weight).sum(1) + self.one.weight[ids].sum(1)
        return self.bag(ids) + self.one(ids).sum(1)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("how", ["modules", "functions"])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "backward"])
def test_few_functions_stand_between_a_loop_and_the_kernels(
    how: str, rule: str, prefetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if rule == "momentum" else 0.0)
    update = "backward" if rule == "backward" else "step"
    runtime = adaptive_rec.wrap(model, optimizer=optimizer, budget="1KiB", update=update)
    gathers, updates = Frames(monkeypatch, reading, "gather_bags"), Frames(monkeypatch, row_update, "update_rows")
    batches = [torch.randint(40, (8, 3)) for _ in range(3)]
    loop = runtime.prefetch(batches, lambda ids: {"bag": ids, "one": ids}) if prefetch else batches
    for ids in loop:
        optimizer.zero_grad()
        model(ids, how).sum().backward()
        optimizer.step()
    assert len(gathers.found) >= 3 <= len(updates.found)
    assert [names for names in gathers.found if not 0 < len(names) <= FORWARD] == []
    assert [names for names in updates.found if not 0 < len(names) <= STEP] == []


def test_the_runtime_of_a_loop_is_a_session_with_parts() -> None:
    """One class makes the parts; it is not cut into a chain of classes with one `self`."""
    assert WrappedRuntime.__mro__[:3] == (WrappedRuntime, adaptive_rec.EmbeddingRuntime, Session)
