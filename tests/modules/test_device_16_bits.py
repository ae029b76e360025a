"""Tables of 16 bits of a loop on a device: the bits of a CPU, rounding included. The device is that of `late_streams.py`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive_rec import AdaptiveEmbedding
from adaptive_rec.errors import TrainingError
from adaptive_rec.system.group import Alone

from .test_device import _device  # noqa: F401 - a fixture
from .test_ranks_16_bits import same, train
from .test_rows_of_16_bits import batches, made, trained

TYPES = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
HOMES = ["memory", *(pytest.param(where, marks=pytest.mark.slow) for where in ("raw", "disk"))]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("where", HOMES)
def test_a_loop_on_a_device_has_the_bits_of_one_on_a_cpu(
    request: pytest.FixtureRequest, tmp_path: Path, dtype: torch.dtype, where: str
) -> None:
    losses, weights = train(Alone(), dtype, 0.25, where, tmp_path)
    request.getfixturevalue("_device")
    for ahead in (False, True):
        found = train(Alone(), dtype, 0.25, where, tmp_path, ahead)
        assert found[0] == losses
        assert same(found[1], weights)


@pytest.mark.parametrize("dtype", TYPES)
def test_rounded_rows_have_the_bits_of_a_cpu_and_the_loop_resumes(request: pytest.FixtureRequest, dtype: torch.dtype) -> None:
    on_cpu = trained(*made(dtype, torch.optim.Adagrad)[:2], batches(30))
    request.getfixturevalue("_device")
    parts = made(dtype, torch.optim.Adagrad)
    assert all(map(torch.equal, trained(*parts[:2], batches(30)), on_cpu))
    saved = copy.deepcopy([part.state_dict() for part in parts])
    wanted, again = trained(*parts[:2], batches(40)[30:]), made(dtype, torch.optim.Adagrad)
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    assert all(map(torch.equal, trained(*again[:2], batches(40)[30:]), wanted))


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("policy", ["hybrid", "device_only"])
def test_a_row_too_large_for_half_precision_is_found_when_it_is_saved(policy: str) -> None:
    """No step waits to learn of it."""
    options: Any = {"optimizer": "sgd", "lr": 1e6, "name": "items", "policy": policy, "budget": "1KiB"}
    table = AdaptiveEmbedding(9, 4, dtype=torch.float16, **options)
    table(torch.tensor([2])).float().sum().backward()
    with pytest.raises(TrainingError, match=r"half precision must stay within 65504, one of table items"):
        table.state_dict()
