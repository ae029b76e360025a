"""`wrap` leaves tables whose weight is computed from others (weight_norm, spectral_norm, prune)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from adaptive_rec.errors import AdaptiveRecError

from .training import wrapped

COMPUTED: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "parametrized weight_norm": nn.utils.parametrizations.weight_norm,
    "parametrized spectral_norm": nn.utils.parametrizations.spectral_norm,
    "prune": lambda module: prune.l1_unstructured(module, "weight", amount=0.3),
}


@pytest.mark.parametrize("how", COMPUTED)
def test_tables_whose_weight_is_computed_are_left(how: str) -> None:
    model = nn.ModuleDict({"computed": nn.Embedding(50, 4), "table": nn.Embedding(50, 4)})
    COMPUTED[how](model["computed"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = wrapped(model, torch.optim.SGD, budget="1KiB").report
    assert [name for name, _ in report.left] == ["computed"]
    assert "its weight is computed" in report.left[0][1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    alone = nn.ModuleDict({"computed": model["computed"]})
    with pytest.raises(AdaptiveRecError, match="computed: its weight is computed"):
        wrapped(alone, torch.optim.SGD(alone.parameters(), lr=0.1))
