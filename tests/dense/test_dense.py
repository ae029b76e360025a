"""The dense part replayed over padded, static buffers gives what it gives run as it is, and touches nothing before its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.models.dlrm import DLRM
from adaptive_rec.dense.replayed import ReplayedDense
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.placement import RowSpace

DENSE_FEATURES = 3
DIMS = (4, 4, 2, 4)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
Launch = Callable[[Callable[[], object]], object]


@dataclass
class DeferredStreams:
    """Computation that is put off until `drain`. As a real recording, capture runs the work before it is replayed."""

    runs: int = 3
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    recordings: int = 0
    waiting: deque[Callable[[], object]] = field(default_factory=deque)
    running: bool = False

    def launch(self, work: Callable[[], object]) -> None:
        if self.running:
            work()
        else:
            self.waiting.append(work)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        assert self.running, "recording touches the device, so it must come in its turn"
        self.recordings += 1
        for _ in range(self.runs):
            work()
        return work

    def drain(self) -> None:
        self.running = True
        while self.waiting:
            self.waiting.popleft()()
        self.running = False


@dataclass
class Step:
    """One mini-batch, cut into micro-batches."""

    dense_BX: Tensor
    pooled: list[Tensor]
    labels_B: Tensor
    scale_B: Tensor
    parts: tuple[int, ...]


def space() -> RowSpace:
    tables = tuple(TableSpec(f"T{i}", 5, dim) for i, dim in enumerate(DIMS))
    return RowSpace.of(tables, tuple(FeatureSpec(f"F{i}", i) for i in range(len(DIMS))))


def dtype_of(precision: str) -> torch.dtype:
    return torch.float64 if precision == "float64" else torch.float32


def build(
    precision: str, streams: Any = None, optimizer: str = "Adagrad", batch_size: int = 0, device: str = "cpu"
) -> Any:
    model = DLRM(space(), DENSE_FEATURES, 4, (7,), (6, 5), seed=1).to(device, dtype_of(precision))
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    own = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, **options)
    shared = (model, own, precision, dtype_of(precision), torch.device(device), space(), DENSE_FEATURES)
    return ReplayedDense(*shared, streams, batch_size) if streams else DensePart(*shared)


def steps_of(splits: list[tuple[int, ...]], precision: str, device: str = "cpu", weights: bool = True) -> list[Step]:
    dice = torch.Generator().manual_seed(5)
    made = []
    for parts in splits:
        size = sum(parts)
        pooled = [torch.randn(size, len(p.features), p.dim, generator=dice) for p in space().pools]
        weight_B = 0.5 + 3 * torch.rand(size, generator=dice) if weights else torch.ones(size)
        labels_B = (torch.rand(size, generator=dice) < 0.4).float()
        tensors = [torch.randn(size, DENSE_FEATURES, generator=dice), *pooled, labels_B, weight_B]
        dense_BX, *pooled, labels_B, weight_B = (t.to(device, dtype_of(precision)) for t in tensors)
        made.append(Step(dense_BX, pooled, labels_B, weight_B / size, parts))
    return made


def fill(micro: MicroBatch, step: Step, first: int) -> None:
    """What the store does: the samples from `first` on, then zeros on the lines that are padding. Before: poison."""
    real = slice(first, first + micro.samples)
    sources = [step.dense_BX, *step.pooled, step.labels_B, step.scale_B]
    for target, source in zip([micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S], sources, strict=True):
        target.fill_(torch.nan)
        target[: micro.samples].copy_(source[real])
        target[micro.samples :].zero_()


def at_once(work: Callable[[], object]) -> object:
    return work()


def train(part: DensePart, steps: list[Step], launch: Launch = at_once) -> list[list[Tensor]]:
    """All steps; returns each step's gradients of the pooled vectors, copied in their turn."""
    found: list[list[Tensor]] = []
    for number, step in enumerate(steps):
        part.begin_step()
        first = 0
        for samples in step.parts:
            micro = part.inputs(samples)
            assert micro.samples == samples <= len(micro.scale_S)
            launch(partial(fill, micro, step, first))
            part.run(micro)
            first += samples
        copies: list[Tensor] = []
        gradients, lines = part.gradients(), sum(step.parts)
        launch(lambda gradients=gradients, lines=lines, to=copies: to.extend(g[:lines].clone() for g in gradients))
        found.append(copies)
        part.step(1 / (1 + number))
    return found


def assert_equal(one: DensePart, other: DensePart, one_found: Any, other_found: Any, **tolerance: float) -> None:
    for mine, theirs in zip(one_found, other_found, strict=True):
        assert len(mine) == len(theirs) == len(space().pools)
        for gradient, expected in zip(mine, theirs, strict=True):
            torch.testing.assert_close(gradient, expected, **tolerance)
    for parameter, expected in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, **tolerance)
    torch.testing.assert_close(one.loss_sum, other.loss_sum, **tolerance)


SPLITS: dict[str, list[tuple[int, ...]]] = {
    "whole": [(64,)] * 5,
    "two": [(20, 44), (1, 63), (33, 31), (63, 1), (20, 44)],
    "odd": [(13,), (7, 4), (11,), (1,), (5, 1, 6)],
    "growing": [(3,), (10,), (4, 9), (40, 2), (64,), (2, 3), (1, 70, 2)],
    "uneven": [(30, 34), (64,), (17,), (8, 3, 50, 3), (64,)],
}


@pytest.mark.parametrize("late", [False, True], ids=["prompt", "late"])
@pytest.mark.parametrize("batch_size", [0, 64])
@pytest.mark.parametrize("split", SPLITS)
def test_replayed_equals_eager(split: str, batch_size: int, late: bool) -> None:
    """Late: nothing runs before all steps are queued."""
    streams = DeferredStreams()
    eager, replayed = build("float64"), build("float64", streams, batch_size=batch_size)

    def launch(work: Callable[[], object]) -> None:
        streams.launch(work)
        if not late:
            streams.drain()

    steps = steps_of(SPLITS[split], "float64")
    expected, found = train(eager, steps), train(replayed, steps, launch)
    streams.drain()
    assert_equal(replayed, eager, found, expected, rtol=1e-12, atol=1e-14)


CLOSE: dict[str, dict[str, float]] = {
    "float64": {"rtol": 1e-11, "atol": 1e-13},
    "float32": {"rtol": 1e-3, "atol": 1e-4},
    "bf16": {"rtol": 0.1, "atol": 0.02},
}
COMBINED = [
    ("float64", "Adam"),
    ("float64", "RMSprop"),
    ("float32", "Adagrad"),
    ("float32", "SGD"),
    ("bf16", "SGD"),  # the others divide noise by noise where a gradient is next to nothing
]


@pytest.mark.parametrize(("precision", "optimizer"), COMBINED)
def test_replayed_equals_eager_in_every_precision(precision: str, optimizer: str) -> None:
    streams = DeferredStreams()
    eager, replayed = build(precision, optimizer=optimizer), build(precision, streams, optimizer)
    steps = steps_of(SPLITS["uneven"][:3], precision)
    expected, found = train(eager, steps), train(replayed, steps, streams.launch)
    streams.drain()
    assert_equal(replayed, eager, found, expected, **CLOSE[precision])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_bf16_runs_the_model_in_bf16(precision: str) -> None:
    streams = DeferredStreams()
    for part, launch in ((build(precision), at_once), (build(precision, streams), streams.launch)):
        seen = set()
        part.model.top[0].register_forward_hook(lambda module, args, out, seen=seen: seen.add(out.dtype))
        train(part, steps_of([(8, 3)], precision), launch)
        streams.drain()
        assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}


@pytest.mark.parametrize("weights", [False, True])
def test_eager_is_the_weighted_mean_loss_of_plain_torch(weights: bool) -> None:
    part, plain = build("float64"), build("float64").model
    (step,) = steps_of([(5, 12)], "float64", weights=weights)
    part.begin_step()
    pooled = [vectors.requires_grad_() for vectors in step.pooled]
    losses = binary_cross_entropy_with_logits(plain(step.dense_BX, pooled), step.labels_B, reduction="none")
    ((losses * step.scale_B * 17).sum() / 17).backward()
    for samples, first in ((5, 0), (12, 5)):
        micro = part.inputs(samples)
        with torch.no_grad():
            fill(micro, step, first)
        part.run(micro)
    for gradient, vectors in zip(part.gradients(), pooled, strict=True):
        torch.testing.assert_close(gradient, vectors.grad, rtol=1e-12, atol=1e-15)
    for parameter, expected in zip(part.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(part.step_loss, losses.detach().sum())


def test_the_losses_of_a_micro_batch_are_those_of_its_lines() -> None:
    """Replayed: taken in their turn, before the same memory serves the next micro-batch; lines of padding are left out."""
    streams, (step,) = DeferredStreams(), steps_of([(9, 30, 2)], "float64")
    eager, replayed = build("float64"), build("float64", streams, batch_size=41)
    found: dict[str, list[Tensor]] = {"eager": [], "replayed": []}
    for name, part, launch in (("eager", eager, at_once), ("replayed", replayed, streams.launch)):
        part.begin_step()
        first = 0
        for samples in step.parts:
            micro = part.inputs(samples)
            launch(partial(fill, micro, step, first))
            part.run(micro)
            losses_S, to = part.losses_S, found[name]
            launch(lambda losses_S=losses_S, to=to, samples=samples: to.append(losses_S[:samples].clone()))
            first += samples
    streams.drain()
    for mine, expected in zip(found["replayed"], found["eager"], strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(eager.step_loss, torch.cat(found["eager"]).sum())


def test_nothing_runs_before_its_turn() -> None:
    streams = DeferredStreams()
    part = build("float64", streams)
    before = [parameter.clone() for parameter in part.model.parameters()]
    train(part, steps_of([(8, 3), (11,)], "float64"), streams.launch)
    logits = part.logits(
        torch.ones(2, 3).double(), [torch.ones(2, len(p.features), p.dim).double() for p in space().pools]
    )
    assert streams.waiting
    assert streams.recordings == 0
    assert float(part.loss_sum) == 0
    assert all(map(torch.equal, part.model.parameters(), before))
    assert not any(gradient.any() for gradient in part.parameter_gradients)
    logits.fill_(torch.nan)
    streams.drain()
    assert float(part.loss_sum) > 0
    assert logits.isfinite().all()


def test_each_size_is_recorded_once() -> None:
    streams = DeferredStreams()
    part = build("float64", streams, batch_size=64)
    sizes = {len(part.inputs(samples).scale_S) for samples in range(1, 65)}
    assert sizes == set(range(8, 65, 8))
    assert [len(part.inputs(samples).scale_S) for samples in (1, 8, 9, 57, 64)] == [8, 8, 16, 64, 64]
    steps = [step for _ in range(3) for step in steps_of([(64,), (20, 44), (24, 40)], "float64")]
    train(part, steps, streams.launch)
    streams.drain()
    assert streams.recordings == 4  # 64, 24, 48, 40
    part.inputs(65)
    train(part, steps, streams.launch)
    streams.drain()
    assert streams.recordings > 4  # over the new memory


@pytest.mark.parametrize("largest", [1, 2, 7, 8, 9, 17, 100, 2049])
def test_a_whole_batch_has_no_padding_and_others_little(largest: int) -> None:
    part = build("float32", DeferredStreams(), batch_size=largest)
    lines = [len(part.inputs(samples).scale_S) for samples in range(1, largest + 1)]
    assert lines[-1] == largest
    assert len(set(lines)) <= 8
    assert all(0 <= size - samples <= -(-largest // 8) - 1 for samples, size in enumerate(lines, 1))


def test_memory_stays() -> None:
    """Graphs read and write where they did when they were recorded."""
    streams = DeferredStreams()
    part = build("float64", streams, batch_size=32)
    gradients = [parameter.grad for parameter in part.model.parameters()]
    places = set()
    for step in steps_of([(32,), (20,), (20, 12), (32,)], "float64"):
        train(part, [step], streams.launch)
        streams.drain()
        micro = part.inputs(20)
        tensors = [micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S, part.loss_sum]
        places.add(tuple(tensor.data_ptr() for tensor in tensors))
    assert len(places) == 1
    assert all(p.grad is gradient for p, gradient in zip(part.model.parameters(), gradients, strict=True))


def test_one_micro_batch_copies_no_gradients() -> None:
    streams = DeferredStreams()
    part = build("float64", streams, batch_size=32)
    part.begin_step()
    assert part.gradients() == build("float64").gradients() == []
    part.run(part.inputs(20))
    queued = len(streams.waiting)
    part.gradients()
    assert len(streams.waiting) == queued == 1  # the run: there is nothing to set to zero yet
    part.run(part.inputs(12))
    assert [len(gradient) for gradient in part.gradients()] == [32] * len(DIMS[:2])
    part.gradients()
    assert len(streams.waiting) == queued + 3  # a copy, the run, a copy


def test_gradients_are_set_to_zero_by_a_step_or_by_the_next_one() -> None:
    """A step that was made leaves zeros; one that was given up does not."""
    streams = DeferredStreams()
    part = build("float64", streams, batch_size=32)
    for made in (True, False, True):
        part.begin_step()
        micro = part.inputs(20)
        for tensor in (micro.dense_SX, *micro.pooled, micro.labels_S, micro.scale_S):
            tensor.fill_(0.5)
        part.run(micro)
        streams.drain()
        assert any(float(gradient.abs().sum()) for gradient in part.parameter_gradients)
        if made:
            part.step(1.0)
        part.begin_step()
        assert len(streams.waiting) == 1  # the step, or the zeros
        streams.drain()
        assert not any(float(gradient.abs().sum()) for gradient in part.parameter_gradients)
        assert float(part.step_loss) == 0


def test_logits_are_those_of_the_model() -> None:
    (step,) = steps_of([(37,)], "float64")
    streams = DeferredStreams()
    for part in (build("float64"), build("float64", streams)):
        with torch.no_grad():
            expected = part.model.eval()(step.dense_BX, step.pooled)
        part.model.train()
        logits = part.logits(step.dense_BX, step.pooled)
        streams.drain()
        assert not logits.requires_grad
        assert not part.model.training
        assert torch.equal(logits, expected)
    assert streams.recordings == 0


# On a device -----------------------------------------------------------------------------------------------------------


@contextmanager
def no_synchronization() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_cuda(precision: str, batch_size: int = 64, optimizer: str = "Adagrad") -> tuple[DensePart, ReplayedDense]:
    from adaptive_rec.embedding.staged.cuda_streams import CudaStreams

    replayed = build(precision, CudaStreams(torch.device("cuda")), optimizer, batch_size, "cuda")
    return build(precision, None, optimizer, device="cuda"), replayed


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("precision", "optimizer"), COMBINED)
@pytest.mark.parametrize("split", SPLITS)
def test_graphs_equal_eager(split: str, precision: str, optimizer: str) -> None:
    eager, replayed = on_cuda(precision, optimizer=optimizer)
    steps = steps_of(SPLITS[split], precision, "cuda")[: 10 if precision == "float64" else 3]
    assert_equal(replayed, eager, train(replayed, steps), train(eager, steps), **CLOSE[precision])


@pytest.mark.gpu
@needs_cuda
def test_graphs_do_not_wait_for_the_device_once_recorded() -> None:
    eager, replayed = on_cuda("float32")
    steps = steps_of(SPLITS["two"], "float32", "cuda")
    expected, found = train(eager, steps), train(replayed, steps)
    with no_synchronization():
        expected += train(eager, steps)
        found += train(replayed, steps)
    assert_equal(replayed, eager, found, expected, **CLOSE["float32"])


@pytest.mark.gpu
@needs_cuda
def test_graphs_repeat_bit_for_bit() -> None:
    steps = steps_of(SPLITS["uneven"], "float32", "cuda")
    first, second = (on_cuda("float32")[1] for _ in range(2))
    assert_equal(first, second, train(first, steps), train(second, steps), rtol=0, atol=0)


@pytest.mark.gpu
@needs_cuda
def test_recordings_outlive_a_larger_batch() -> None:
    """The buffers and recordings of smaller batches are dropped while their work may still be queued."""
    eager, replayed = on_cuda("float64", batch_size=0)
    steps = steps_of(SPLITS["growing"] * 2, "float64", "cuda")
    assert_equal(replayed, eager, train(replayed, steps), train(eager, steps), **CLOSE["float64"])
