"""Counts of a step's lookups, and tables with large gradients, which are updated by themselves."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec.modules.loop import step_parts
from adaptive_rec.modules.loop.lookup_counts import LookupCounts

STEPS, BATCH, TABLES = 12, 8, 3


def batches() -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(0)
    return list(torch.randint(40, (STEPS, TABLES, BATCH, 2), generator=dice))


def announced(ids: torch.Tensor, tables: int) -> dict[str, Any]:
    return {"t0": [ids[0], ids[1]]} | {f"t{n}": ids[n] for n in range(1, tables)}


def loop(wrapped: bool, ahead: bool, make: Any) -> tuple[list[float], Any, nn.Module]:
    """Train three tables, the last of which is left out in the first four steps; each is read twice."""
    torch.manual_seed(0)
    model = nn.ModuleDict({f"t{n}": nn.Embedding(40, 4, sparse=True) for n in range(TABLES)})
    optimizer = make(model.parameters())
    runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer) if wrapped else None
    read = lambda step: list(model)[: 2 if step < 4 else 3]  # noqa: E731
    items = list(enumerate(batches()))
    source: Any = items
    if runtime is not None and ahead:
        source = runtime.prefetch(items, sparse=lambda item: announced(item[1], len(read(item[0]))))
    losses = []
    for step, ids in source:
        optimizer.zero_grad()
        found = torch.stack([model[name](ids[n]) * (n + 1) for n, name in enumerate(read(step))])
        loss = (found.sum(0) + model["t0"](ids[1])).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, runtime, model


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("make", [lambda weights: torch.optim.SparseAdam(list(weights)), torch.optim.SGD, torch.optim.Adagrad])
def test_each_lookup_counts_once(make: Any, ahead: bool, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a step is several updates of one classified batch: tables that were updated less often than others, or large."""
    monkeypatch.setattr(step_parts, "LARGE_BYTES", 1 if large else 1 << 30)
    wanted, _, plain = loop(False, False, make)
    losses, runtime, model = loop(True, ahead, make)
    assert losses == pytest.approx(wanted, rel=1e-12)
    for name, rows in model.state_dict().items():
        torch.testing.assert_close(rows, copy.deepcopy(plain.state_dict()[name]), rtol=1e-11, atol=1e-12)
    per_table = {f"t{n}": 2 * BATCH * (STEPS - 4 * (n == 2) + STEPS * (n == 0)) for n in range(TABLES)}
    stats = runtime.stats()
    assert stats.looked_up_ahead_ratio == (ahead)
    assert {name: table.lookups for name, table in stats.tables.items()} == per_table
    assert stats.lookups == sum(per_table.values())
    runtime.close()


def test_tables_with_large_gradients_are_updated_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_parts, "LARGE_BYTES", 1)
    joined: list[int] = []
    join = step_parts.StepParts._join

    def noted(self: Any, number: int, lr: float, parts: Any, ahead: Any) -> Any:
        joined.append(len(parts))
        return join(self, number, lr, parts, ahead)

    monkeypatch.setattr(step_parts.StepParts, "_join", noted)
    _, runtime, _ = loop(True, False, torch.optim.SGD)
    assert joined == [2, 1] * 4 + [2, 1, 1] * (STEPS - 4)
    runtime.close()


def test_a_call_without_lookups_keeps_no_sample_from_being_popular() -> None:
    """A sample whose other lookups are hot is popular, whatever tables it does not ask for."""
    counted: list[tuple[int, int]] = []
    state: Any = SimpleNamespace(
        store=SimpleNamespace(space=SimpleNamespace(table_first_row=np.arange(2))),
        tally=SimpleNamespace(add_samples=lambda *given: counted.append(given)),
    )

    class Part(list[int]):
        samples = 2

    work: Any = SimpleNamespace(popular_B=np.array([True, False, True, True, True, True]))
    parts: Any = [(0, Part([7, 8])), (2, Part()), (2, Part([1, 2, 3, 4])), (6, Part())]
    LookupCounts(state, observer=None)._count_samples([(work, parts)], 2)  # type: ignore[arg-type]
    LookupCounts(state, observer=None)._count_samples([(work, parts[1:2])], 2)  # type: ignore[arg-type]
    assert counted == [(2, 1), (2, 2)]
