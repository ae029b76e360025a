"""Loops of several ranks with a device each: rows of others come through host memory, results are those of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive_rec.modules.api import bag, collection_tables, options, wrap
from adaptive_rec.system.group import Alone, Group
from tests.doubles.late_streams import LateStreams

from .cases import few_or_many_steps
from .ranks import patch_ranks, train
from .test_device import ReadableStreams
from .test_ranks import OPTIMIZERS, assert_same
from .test_ranks_16_bits import same
from .test_ranks_16_bits import train as train_16


@pytest.fixture
def on_devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ranks that each have a simulated device."""
    on_ranks = patch_ranks(monkeypatch)
    with_group, made = wrap.setup_from, list[LateStreams]()  # type: ignore[attr-defined]

    def on_device(given: Any, place: torch.device) -> options.Setup:
        setup = with_group(given, place)
        if setup.group.ranks == 1:
            return setup
        made.append(ReadableStreams(seed=7 + setup.group.rank))
        return replace(setup, streams=made[-1])

    for module in (bag, collection_tables, wrap):
        monkeypatch.setattr(module, "setup_from", on_device)
    yield on_ranks
    assert made


@few_or_many_steps(7, 40, name=["adagrad", "sgd"], prefetch=[False, True])
def test_ranks_with_devices_equal_one_process(on_devices: Any, name: str, prefetch: bool, steps: int) -> None:
    found = on_devices(2, lambda group: train(group, OPTIMIZERS[name], steps, prefetch=prefetch, clip=0.5))

    assert_same(found, train(Alone(), OPTIMIZERS[name], steps, clip=0.5))
    for one in found:
        assert one.runtime.store.path.stages_ahead
        assert one.runtime.store.index.traffic.host_to_device_bytes > 0
        assert one.runtime.stats().migrated_rows > 0


@few_or_many_steps(7, 30)
def test_a_table_that_a_loss_uses_as_a_whole(on_devices: Any, steps: int) -> None:
    found = on_devices(2, lambda group: train(group, OPTIMIZERS["adagrad"], steps, penalty=0.01))

    assert_same(found, on_devices(3, lambda group: train(group, OPTIMIZERS["adagrad"], steps, penalty=0.01))[0])


@pytest.mark.parametrize("where", ["raw", *(pytest.param(each, marks=pytest.mark.slow) for each in ("memory", "disk"))])
def test_tables_of_16_bits_too(on_devices: Any, tmp_path: Path, where: str) -> None:
    losses, weights = train_16(Alone(), torch.bfloat16, 0.25, where, tmp_path)

    def of_rank(group: Group) -> Any:
        return train_16(group, torch.bfloat16, 0.25, where, tmp_path)

    for found in on_devices(2, of_rank):
        assert found[0] == losses
        assert same(found[1], weights)
