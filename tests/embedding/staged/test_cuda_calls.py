"""What `CudaStreams` asks of torch, on a CUDA that is made up: which device is current, how copies are cut, what a fault ends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

from adaptive_rec.embedding.staged import cuda_streams
from adaptive_rec.embedding.staged.cuda_streams import PIECE_BYTES, CudaStreams
from adaptive_rec.errors import ConfigError, TrainingError

SECOND = torch.device("cuda", 1)


class MadeUpCuda:
    """As much of `torch.cuda` as `CudaStreams` calls; the current device is a variable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.priorities, self.recorded = 0, [], 0
        monkeypatch.setattr(cuda_streams, "_cuda_kernels", lambda: ModuleType("none"))
        monkeypatch.setattr(cuda_streams, "Driver", MadeUpDriver)
        MadeUpDriver.copied = []
        for name in ("device", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.Stream(device))
        monkeypatch.setattr(torch.cuda, "Stream", self.Stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)

    def Stream(self, device: torch.device, priority: int = 0) -> Any:
        self.priorities.append(priority)
        return MadeUpStream(device)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def stream(self, stream: Any) -> Any:
        return self.device(stream.device)

    @contextmanager
    def graph(self, *_: Any, **__: Any) -> Iterator[None]:
        self.recorded += 1
        yield

    def replay(self) -> None: ...


class MadeUpStream:
    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda_stream = device, id(self)

    def wait_stream(self, stream: Any) -> None: ...


class MadeUpDriver:
    """Copies at once."""

    copied: ClassVar[list[int]] = []

    def __init__(self, index: int) -> None: ...

    def __enter__(self) -> MadeUpDriver:
        return self

    def __exit__(self, *_: object) -> None: ...

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(to, source, nbytes)
        self.copied.append(nbytes)

    def record(self, stream: int) -> str:
        return "event"

    def wait(self, stream: int, event: str) -> None: ...


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MadeUpCuda:
    return MadeUpCuda(monkeypatch)


def test_work_runs_with_its_own_device_current_whichever_was_before(cuda: MadeUpCuda) -> None:
    seen: list[int] = []
    device = CudaStreams(SECOND)
    device.launch(lambda: seen.append(cuda.current))
    device.capture(lambda: seen.append(cuda.current))
    assert set(seen) == {1}
    assert cuda.current == 0
    assert cuda.recorded == 1
    assert CudaStreams(torch.device("cuda")).device.index == 0


def test_large_copies_are_cut_and_the_urgent_stream_comes_first(cuda: MadeUpCuda) -> None:
    device = CudaStreams(SECOND)
    assert min(cuda.priorities) == -1
    for shape in [(2 * PIECE_BYTES // 8 + 3, 2), (5,), (0,)]:
        source = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
        target = torch.full(shape, -1.0)
        device.upload(target, source, None)
        assert torch.equal(target, source)
    assert MadeUpDriver.copied == [PIECE_BYTES, PIECE_BYTES, 24, 20]
    with pytest.raises(ValueError, match="tensors of one size, got 20 bytes from 24"):
        device.download(torch.empty(5), torch.empty(6))


def test_a_recording_that_fails_ends_the_run_even_for_want_of_memory(cuda: MadeUpCuda) -> None:
    """The allocator may be left recording: a step that was tried again would write to memory that it does not own."""

    def fails() -> None:
        if cuda.recorded:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(TrainingError, match=r"run\.cuda_graphs must be false where .* recorded: CUDA out of memory"):
        CudaStreams(SECOND).capture(fails)


def test_a_driver_that_cannot_be_loaded_is_an_error_by_name(cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a build of torch for other GPUs."""

    def absent(index: int) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda_streams, "Driver", absent)
    with pytest.raises(ConfigError, match=r"run\.device=cuda needs the driver of an NVIDIA GPU, .*: libcuda\.so\.1: cannot open"):
        CudaStreams(SECOND)
