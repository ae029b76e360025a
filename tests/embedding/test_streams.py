"""The late device is as late as it may be; the real one gives what plain steps give (where there is one)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.assemble import assemble
from adaptive_rec.config import load_config
from adaptive_rec.embedding.streams import CudaStreams, LateStreams
from adaptive_rec.telemetry import Snapshot

gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DIRECTIONS = ["upload", "download"]


@dataclass
class Copy:
    target: torch.Tensor
    event: Any


def queue(streams: LateStreams, direction: str, source: torch.Tensor) -> Copy:
    if direction == "upload":
        upload = streams.upload(source)
        return Copy(upload.tensor, upload.event)
    target = torch.zeros_like(source)
    return Copy(target, streams.download(target, source))


def queue_many(streams: LateStreams, direction: str, copies: int = 40) -> tuple[list[Copy], list[torch.Tensor]]:
    """Queue copies of 0, 1, 2, ...; some of them run early, by the dice."""
    sources = [torch.full((3,), float(k)) for k in range(copies)]
    return [queue(streams, direction, source) for source in sources], sources


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_copy_is_poison_until_it_is_waited_for(direction: str) -> None:
    streams = LateStreams(seed=1)
    copies, _ = queue_many(streams, direction)
    late = [k for k, copy in enumerate(copies) if not copy.event.done]
    assert late
    assert all(bool(copies[k].target.isnan().all()) for k in late)
    assert all(bool((copies[k].target == k).all()) for k in range(len(copies)) if k not in late)

    streams.host_waits(copies[-1].event)
    assert all(bool((copy.target == k).all()) for k, copy in enumerate(copies))


def test_an_upload_is_whole_once_it_is_taken() -> None:
    streams = LateStreams(seed=4)
    uploads = [streams.upload(torch.full((3,), float(k))) for k in range(40)]
    assert not uploads[-1].event.done
    assert streams.arrived(uploads[-1]).tolist() == [39.0] * 3


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_copies_of_one_direction_run_in_the_order_they_were_queued(direction: str) -> None:
    streams = LateStreams(seed=2)
    copies, _ = queue_many(streams, direction)
    middle = next(k for k, copy in enumerate(copies) if not copy.event.done and k >= 10)
    streams.host_waits(copies[middle].event)
    done = [copy.event.done for copy in copies]
    assert all(done[: middle + 1])
    assert sorted(done, reverse=True) == done, "no copy overtakes another"
    assert all(bool((copies[k].target == k).all()) for k in range(middle + 1))


def test_the_two_directions_do_not_wait_for_each_other() -> None:
    """Whatever the dice do: in some of many runs one direction is done while the other still stands."""
    standing = 0
    for seed in range(20):
        streams = LateStreams(seed)
        down = queue(streams, "download", torch.ones(1))
        streams.host_waits(queue(streams, "upload", torch.ones(1)).event)
        standing += not down.event.done
    assert standing > 5


def test_the_source_is_read_when_the_copy_runs() -> None:
    """So a source that is written or reused too early shows up as a wrong result."""
    streams = LateStreams(seed=3)
    copies, sources = queue_many(streams, "upload")
    late = [k for k, copy in enumerate(copies) if not copy.event.done]
    for source in sources:
        source.fill_(-5.0)
    streams.host_waits(copies[-1].event)
    assert late
    assert all(float(copy.target[0]) == (-5.0 if k in late else k) for k, copy in enumerate(copies))


def test_the_dice_depend_on_the_seed_alone() -> None:
    patterns = [
        tuple(copy.event.done for copy in queue_many(LateStreams(seed), "upload")[0]) for seed in (5, 5, 6, 7, 8)
    ]
    assert patterns[0] == patterns[1]
    assert len(set(patterns)) > 1


def test_fresh_pinned_memory_holds_no_numbers() -> None:
    assert bool(LateStreams(0).pinned(2, 3, dtype=torch.float64).isnan().all())


@gpu
@needs_cuda
def test_cuda_copies_there_and_back_keep_every_byte() -> None:
    device = torch.device("cuda")
    streams = CudaStreams(device)
    random = np.random.default_rng(0)
    for size in (0, 1, 1000, 1_000_000):
        values = torch.from_numpy(random.normal(size=size))
        up = streams.pinned(size, dtype=torch.float64)
        assert up.is_pinned()
        up.copy_(values)
        doubled = streams.arrived(streams.upload(up)) * 2
        back = streams.pinned(size, dtype=torch.float64)
        streams.host_waits(streams.download(back, doubled))
        assert torch.equal(back, values * 2)


def train_on(device: str, policy: str, optimizer: str, budget_bytes: int) -> tuple[list[float], list[np.ndarray]]:
    settings = [
        f"knobs.policy={policy}",
        "run.split=always",
        f"run.device={device}",
        "run.precision=float64",
        "run.steps=60",
        "run.batch_size=64",
        "data.table_rows=[400, 300, 50, 3]",
        "data.dense_features=3",
        "data.synthetic.samples=4000",
        "data.synthetic.test_samples=64",
        "data.synthetic.lookups_per_feature=2",
        "data.pooling=mean",
        "model.embedding_dim=8",
        "model.table_dims=[8, 4, 8, 4]",
        "model.bottom_mlp=[16]",
        "model.top_mlp=[16]",
        f"optimizer.embedding={optimizer}",
        "optimizer.dense=SGD",
        f"knobs.hot_budget_bytes={budget_bytes}",
        "knobs.reclassify_every=4",
        "knobs.hysteresis=0.0",
        "knobs.report_every=1",
        "knobs.prefetch_depth=3",
    ]
    runtime = assemble(load_config(None, {}, settings))
    losses = [event.loss for event in runtime.run() if isinstance(event, Snapshot)]
    assert runtime.device.type == device
    return losses, [runtime.store.export_table(table)[0] for table in range(4)]


@gpu
@needs_cuda
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "lazy_adam"])
@pytest.mark.parametrize(("policy", "budget_bytes"), [("hybrid", 0), ("hotline", 20_000), ("device_only", 0)])
def test_training_on_a_cuda_device_equals_plain_steps_on_the_cpu(
    policy: str, budget_bytes: int, optimizer: str
) -> None:
    losses, tables = train_on("cuda", policy, optimizer, budget_bytes)
    plain_losses, plain_tables = train_on("cpu", "hybrid", optimizer, 0)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-10)
    for mine, plain in zip(tables, plain_tables, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-9)
