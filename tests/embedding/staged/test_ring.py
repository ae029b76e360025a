"""Slots of staging memory are used again and again, grow, are held by several, and never mix two batches up."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
import torch

from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.ring import Slot, StagingRing
from adaptive_rec.embedding.staged.streams import Event, Streams
from tests.doubles.late_streams import LateStreams

gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
NO_KERNELS = ModuleType("no kernels: nothing here calls them")


def late(seed: int) -> LateStreams:
    return LateStreams(seed, NO_KERNELS)


class Diary:
    """Streams on which everything happens at once; records the calls."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.kernels = NO_KERNELS
        self.calls: list[Any] = []

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.calls.append(("pinned", nbytes))
        return torch.zeros(nbytes, dtype=torch.uint8)

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.calls.append(("allocate", nbytes))
        return torch.zeros(nbytes, dtype=torch.uint8)

    def upload(
        self, to_device: torch.Tensor, from_host: torch.Tensor, after: Event | None, urgent: bool = False
    ) -> Event:
        to_device.copy_(from_host)
        self.calls.append(("upload", len(to_device), after))
        return f"up {len(to_device)}"

    def download(self, to_host: torch.Tensor, from_device: torch.Tensor, after: Event | None = None) -> Event:
        to_host.copy_(from_device)
        self.calls.append(("download", len(to_host)))
        return f"down {len(to_host)}"

    def up_waits(self, event: Event, urgent: bool = False) -> None:
        self.calls.append(("up_waits", event))

    def host_waits(self, event: Event) -> None:
        self.calls.append(("host_waits", event))

    def taken(self) -> list[Any]:
        calls, self.calls = self.calls, []
        return calls


def diary() -> tuple[Diary, StagingRing]:
    streams = Diary()
    return streams, StagingRing(streams)  # type: ignore[arg-type]


def test_a_slot_is_a_quarter_larger_than_requested_and_reused_when_free() -> None:
    streams, ring = diary()
    first = ring.take(1000)
    assert streams.taken() == [("pinned", 1280), ("allocate", 1280)]
    assert len(first.pinned) == len(first.device) == 1280
    second = ring.take(10)
    assert second is not first
    first.release(None)
    second.release(None)
    assert ring.take(1280) is first, "what has been free for longest comes first"
    assert ring.take(5) is second
    assert ring.slots == 2
    assert ring.take(0) not in (first, second)


def test_a_slot_that_is_too_small_grows_when_its_former_users_are_waited_for() -> None:
    streams, ring = diary()
    slot = ring.take(100)
    slot.upload(0, 50)
    slot.hold()
    slot.release("first user")
    slot.release("second user")
    streams.taken()
    assert ring.take(1000) is slot
    # After the waits the allocator may give the old memory to the queue of copies up.
    assert streams.taken() == [
        ("host_waits", "up 50"),
        ("up_waits", "first user"),
        ("up_waits", "second user"),
        ("pinned", 1280),
        ("allocate", 1280),
    ]
    slot.upload(0, 1000)
    assert streams.taken() == [("upload", 1000, None)]


def test_the_first_upload_waits_for_former_users_and_the_next_take_for_the_last_copies() -> None:
    streams, ring = diary()
    slot = ring.take(100)
    slot.upload(0, 10)
    slot.upload(10, 30)
    slot.download(0, 5)
    slot.release("computed")
    assert ring.take(100) is slot
    streams_asked = streams.taken()
    assert streams_asked[-2:] == [("host_waits", "up 20"), ("host_waits", "down 5")]
    slot.upload(0, 100)
    slot.upload(100, 110)
    assert streams.taken() == [("up_waits", "computed"), ("upload", 100, None), ("upload", 10, None)]
    slot.release(None)
    ring.take(100)
    assert streams.taken() == [("host_waits", "up 10")]


def test_what_was_waited_for_is_not_waited_for_again() -> None:
    streams, ring = diary()
    slot = ring.take(100)
    slot.upload(0, 10)
    slot.download(0, 5)
    slot.came_down()
    slot.release(None)
    streams.taken()
    assert ring.take(100) is slot
    assert streams.taken() == []
    slot.upload(0, 20)
    slot.release(None)
    assert ring.take(100) is slot
    assert streams.taken() == [("upload", 20, None), ("host_waits", "up 20")]


def test_of_events_in_the_order_of_computation_the_last_one_is_enough() -> None:
    streams = Diary()
    ring = StagingRing(streams, in_order=True)  # type: ignore[arg-type]
    slot = ring.take(100)
    for _ in range(2):
        slot.hold()
    slot.release("first user")
    slot.release("second user")
    slot.release(None)
    streams.taken()
    assert ring.take(100) is slot
    slot.upload(0, 10)
    assert streams.taken() == [("up_waits", "second user"), ("upload", 10, None)]


def test_a_slot_is_free_when_its_last_user_is_gone() -> None:
    _, ring = diary()
    slot = ring.take(8)
    slot.hold()
    slot.hold()
    slot.release(None)
    slot.release(None)
    assert ring.take(8) is not slot
    slot.release(None)
    assert ring.take(8) is slot


def test_a_free_slot_can_be_neither_held_nor_released() -> None:
    _, ring = diary()
    slot = ring.take(8)
    slot.release(None)
    with pytest.raises(RuntimeError, match="more often"):
        slot.release(None)
    with pytest.raises(RuntimeError, match="cannot be held"):
        slot.hold()
    assert ring.take(8) is slot


def test_memory_is_accounted_for_until_it_is_given_back() -> None:
    streams, ring = diary()
    a, b = ring.take(100), ring.take(1000)
    assert (ring.device_bytes, ring.pinned_bytes, ring.slots) == (1536, 1536, 2)
    a.upload(0, 100)
    a.release("computed")
    assert ring.device_bytes == 1536
    streams.taken()
    ring.close()
    assert streams.taken() == [("host_waits", "up 100"), ("up_waits", "computed")]
    assert (ring.device_bytes, ring.pinned_bytes, ring.slots) == (1280, 1280, 1)
    assert len(a.device) == len(a.pinned) == 0
    b.release(None)
    assert ring.take(1000) is b
    b.release(None)
    ring.close()
    assert (ring.device_bytes, ring.pinned_bytes, ring.slots) == (0, 0, 0)


def test_a_slot_for_which_there_is_no_memory_is_forgotten() -> None:
    streams, ring = diary()
    slot = ring.take(100)
    slot.release(None)
    streams.allocate = no_memory  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        ring.take(1000)
    assert (ring.device_bytes, ring.pinned_bytes, ring.slots) == (0, 0, 0)


def no_memory(nbytes: int) -> torch.Tensor:
    raise MemoryError(nbytes)


# What the late device makes of it ------------------------------------------------------------------------------------


def floats(memory: torch.Tensor, count: int) -> torch.Tensor:
    return memory[: 4 * count].view(torch.float32)


def size_of(batch: int) -> int:
    """Floats of a batch; the later ones are larger on the whole."""
    return 3 + batch // 4 + 7 * batch % 5


def train(streams: Streams, mistake: str = "", batches: int = 60, scale: int = 1, depth: int = 3) -> list[float]:
    """Batches go up `depth` ahead; each is added to what the batch two before it left in its slot, and comes down."""
    ring = StagingRing(streams)
    ahead: list[tuple[Slot, Event]] = []
    done: list[tuple[int, Slot, Event]] = []
    read = []
    lent: list[Slot] = []
    for step in range(batches + depth):
        if step < batches:
            count = size_of(step) * scale
            slot = ring.take(4 * count)
            floats(slot.pinned, count).fill_(step)
            ahead.append((slot, slot.upload(0, 4 * count)))
        if step >= depth:
            slot, here = ahead.pop(0)
            count = 3 * scale
            streams.compute_waits(here)
            if len(lent) == 2:  # what forwarding between batches does: a slot read by a later batch
                earlier = lent.pop(0)
                rows = (floats(slot.device, count), floats(earlier.device, count))
                streams.launch(lambda rows=rows: rows[0].add_(rows[1]))
                if mistake != "hold":
                    earlier.release(None if mistake == "release" else streams.compute_event())
            if mistake != "hold":
                slot.hold()
            lent.append(slot)
            done.append((step - depth, slot, slot.download(0, 4 * count)))
        if len(done) == 3 or (step >= batches and done):
            read += [read_home(streams, *done.pop(0), mistake=mistake)]
    read += [read_home(streams, *rest, mistake=mistake) for rest in done]
    return read


def read_home(streams: Streams, step: int, slot: Slot, event: Event, mistake: str) -> float:
    if mistake != "download":
        streams.host_waits(event)
    value = float(floats(slot.pinned, 3)[2])
    slot.release(None)
    return value


def expected(batches: int = 60) -> list[float]:
    values: list[float] = []
    for step in range(batches):
        values.append(step + (values[step - 2] if step >= 2 else 0.0))
    return values


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_batches_in_a_ring_never_mix(runs: int) -> None:
    for seed in range(runs):
        assert train(late(seed)) == expected(), seed


MISTAKES = {
    "release": "released without the event of the computation that reads it",
    "hold": "read by a later batch that does not hold it",
    "download": "download read before its event",
}


@pytest.mark.parametrize("runs", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mistake", MISTAKES, ids=MISTAKES.get)
def test_a_slot_used_wrongly_is_a_wrong_result(mistake: str, runs: int) -> None:
    found = sum(train(late(seed), mistake) != expected() for seed in range(runs))
    assert found >= 0.95 * runs


SLOTS_AT_MOST = 9
"""Slots that `share` uses: three in each of its two queues, and one in each of its three threads."""


def share(streams: Streams, batches: int = 200, scale: int = 1) -> StagingRing:
    """One thread takes and sends, one computes, one fetches and releases; sizes differ from batch to batch."""
    ring = StagingRing(streams)
    sent, computed = queue.Queue[Any](maxsize=3), queue.Queue[Any](maxsize=3)

    def send() -> None:
        for batch in range(batches):
            count = size_of(batch * 13 % 50) * scale
            slot = ring.take(4 * count)
            floats(slot.pinned, count).fill_(batch)
            sent.put((count, slot, slot.upload(0, 4 * count)), timeout=300)

    def fetch() -> None:
        for batch in range(batches):
            count, slot, downloaded = computed.get(timeout=300)
            streams.host_waits(downloaded)
            assert bool((floats(slot.pinned, count) == batch + 1).all()), batch
            slot.release(None)

    with ThreadPoolExecutor(2) as workers:
        others = [workers.submit(send), workers.submit(fetch)]
        for _ in range(batches):
            count, slot, uploaded = sent.get(timeout=300)
            slot.hold()
            streams.compute_waits(uploaded)
            streams.launch(lambda slot=slot, count=count: floats(slot.device, count).add_(1))
            slot.release(streams.compute_event())
            computed.put((count, slot, slot.download(0, 4 * count)), timeout=300)
        for other in others:
            other.result()
    return ring


def test_three_threads_share_a_ring() -> None:
    for seed in range(10):
        ring = share(late(seed))
        assert ring.slots <= SLOTS_AT_MOST
        largest = -(-4 * 1.25 * max(map(size_of, range(50))) // 256) * 256
        assert ring.device_bytes == ring.pinned_bytes <= SLOTS_AT_MOST * largest


def test_many_threads_never_get_the_same_slot() -> None:
    _, ring = diary()
    in_use: set[int] = set()
    lock = threading.Lock()

    def take_and_release() -> None:
        for k in range(300):
            slot = ring.take(k)
            with lock:
                assert id(slot) not in in_use
                in_use.add(id(slot))
            slot.hold()
            slot.release(None)
            with lock:
                in_use.remove(id(slot))
            slot.release(None)

    with ThreadPoolExecutor(8) as workers:
        for task in [workers.submit(take_and_release) for _ in range(8)]:
            task.result()
    assert ring.slots <= 8


def test_a_use_that_is_not_over_when_the_ring_is_closed_comes_to_its_end() -> None:
    for seed in range(50):
        streams = late(seed)
        ring, total = StagingRing(streams), torch.zeros(1)
        slot = ring.take(400)
        floats(slot.pinned, 100).fill_(1)
        streams.compute_waits(slot.upload(0, 400))
        memory = floats(slot.device, 100)
        streams.launch(lambda memory=memory, total=total: total.add_(memory.sum()))
        slot.release(streams.compute_event())
        ring.close()
        slot = ring.take(400)
        floats(slot.pinned, 100).fill_(2)
        streams.host_waits(slot.upload(0, 400))
        assert float(total) == 100, "the copy up waits for the memory's former user, even in another slot"


# On a real device ----------------------------------------------------------------------------------------------------


@gpu
@needs_cuda
@pytest.mark.parametrize("scale", [1, 100_000])
def test_batches_in_a_ring_on_cuda_never_mix_and_the_host_never_waits_for_computation(scale: int) -> None:
    streams = CudaStreams(torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert train(streams, scale=scale) == expected()
        share(streams, scale=scale)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
@needs_cuda
def test_a_release_without_its_event_is_a_wrong_result_on_cuda_too() -> None:
    """A former user that computes for long, and an upload into its slot that does not wait for it."""

    def ends_well(wait: bool) -> bool:
        streams = CudaStreams(torch.device("cuda"))
        ring, size = StagingRing(streams), 4_000_000
        a, total = torch.randn(8192, 8192, device="cuda"), torch.zeros((), device="cuda")
        for value in (1, 2):
            slot = ring.take(4 * size)
            floats(slot.pinned, size).fill_(value)
            streams.compute_waits(slot.upload(0, 4 * size))
            if value == 1:
                for _ in range(10):
                    streams.launch(lambda: torch.mm(a, a))
                streams.launch(lambda slot=slot: torch.sum(floats(slot.device, size), 0, out=total))
            slot.release(streams.compute_event() if wait else None)
        return float(total) == size

    assert ends_well(wait=True)
    assert not ends_well(wait=False)


@gpu
@needs_cuda
def test_the_ring_on_cuda_does_not_grow_once_it_is_large_enough() -> None:
    streams = CudaStreams(torch.device("cuda"))
    most = int(SLOTS_AT_MOST * 4 * 100_000 * 1.25 * max(map(size_of, range(50))))
    share(streams, 100, 100_000).close()
    reserved = torch.cuda.memory_reserved()
    for _ in range(20):
        ring = share(streams, 100, 100_000)
        assert ring.device_bytes <= most
        ring.close()
    assert torch.cuda.memory_reserved() <= reserved + most
    assert ring.device_bytes == ring.pinned_bytes == 0
