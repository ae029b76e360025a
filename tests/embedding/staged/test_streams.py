"""The late device turns every mistake into a wrong result and no right use; the real one keeps order without waiting."""

from __future__ import annotations

import gc
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.embedding.staged.streams import Event, Streams
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.runtime.assemble import assemble
from tests.doubles.late_streams import LateStreams

gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

NO_KERNELS = ModuleType("no kernels: nothing here calls them")
BATCHES = 60
SLOTS = 3
LAG = 5
"""Batches until the host reads a result; more than there are slots, so that this wait does not stand for another."""
MISTAKES = {
    "compute": "upload read before it was waited for",
    "pinned": "pinned memory overwritten before its upload ran",
    "release": "slot filled while its former user still computes",
    "download": "download read before its event",
}


def late(seed: int) -> LateStreams:
    return LateStreams(seed, NO_KERNELS)


def floats(memory: torch.Tensor) -> torch.Tensor:
    return memory.view(torch.float32)


def numbers(streams: Streams, count: int, device: bool = True) -> torch.Tensor:
    return floats((streams.allocate if device else streams.pinned)(4 * count))


def train(streams: Streams, mistake: str = "", size: int = 5, batches: int = BATCHES) -> list[float]:
    """Send numbers up through a few slots of memory, compute a result of each, fetch the results with some delay."""
    pinned = [numbers(streams, size, device=False) for _ in range(SLOTS)]
    on_device = [numbers(streams, size) for _ in range(SLOTS)]
    results, home = numbers(streams, batches), numbers(streams, batches, device=False)
    uploads: list[Event] = []
    releases: list[Event] = []
    downloads: list[Event] = []
    read = []
    for batch in range(batches + LAG):
        if batch < batches:
            slot = batch % SLOTS
            if batch >= SLOTS and mistake != "pinned":
                streams.host_waits(uploads[batch - SLOTS])
            pinned[slot].fill_(batch)
            former = releases[batch - SLOTS] if batch >= SLOTS and mistake != "release" else None
            uploads.append(streams.upload(on_device[slot], pinned[slot], former))
            if mistake != "compute":
                streams.compute_waits(uploads[-1])
            streams.launch(lambda s=slot, b=batch: torch.add(on_device[s][-1], 1, out=results[b]))
            releases.append(streams.compute_event())
            downloads.append(streams.download(home[batch : batch + 1], results[batch : batch + 1]))
        if batch >= LAG:
            if mistake != "download":
                streams.host_waits(downloads[batch - LAG])
            read.append(float(home[batch - LAG]))
    return read


def expected(batches: int = BATCHES) -> list[float]:
    return [batch + 1.0 for batch in range(batches)]


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_right_use_is_right_whatever_the_dice_do(runs: int) -> None:
    for seed in range(runs):
        assert train(late(seed)) == expected(), seed


@pytest.mark.parametrize("runs", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mistake", MISTAKES, ids=MISTAKES.get)
def test_a_missing_wait_is_a_wrong_result(mistake: str, runs: int) -> None:
    found = sum(train(late(seed), mistake) != expected() for seed in range(runs))
    assert found >= 0.95 * runs


def test_with_a_seed_and_one_thread_the_order_is_always_the_same() -> None:
    def wrong(seed: int) -> str:
        return str(train(late(seed), "download"))

    assert wrong(5) == wrong(5)
    assert len({wrong(seed) for seed in range(10)}) > 5


def test_copies_and_waits_of_one_queue_keep_their_order() -> None:
    for seed in range(50):
        streams, order = late(seed), list[int]()
        source, targets = numbers(streams, 1, device=False).fill_(1), numbers(streams, 20)
        for k in range(20):
            event = streams.upload(targets[k : k + 1], source, None)
            streams.compute_waits(event)
            streams.launch(lambda k=k, order=order: order.append(k))
            if k == 10:
                middle = streams.compute_event()
        streams.host_waits(middle)
        assert order[:11] == list(range(11))
        assert targets[:11].tolist() == [1.0] * 11
        streams.host_waits(streams.compute_event())
        assert order == list(range(20))


def test_each_queue_runs_ahead_of_the_others_in_some_runs() -> None:
    ahead = set()
    for seed in range(100):
        streams, ran = late(seed), list[str]()
        memory, host = numbers(streams, 2), numbers(streams, 2, device=False)
        down = streams.download(host[:1], memory[:1])
        up = streams.upload(memory[1:], host[1:], None)
        streams.launch(lambda ran=ran: ran.append("compute"))
        ahead |= {name for name, done in (("down", down.done), ("up", up.done), ("compute", bool(ran))) if done}
        ahead |= {"nothing"} if not (down.done or up.done or ran) else set()
    assert ahead == {"down", "up", "compute", "nothing"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_memory_that_nothing_has_arrived_in_holds_no_numbers(dtype: torch.dtype) -> None:
    for seed in range(20):
        streams = late(seed)
        target, source = streams.allocate(48).view(dtype), streams.pinned(48).view(dtype)
        assert bool(target.isnan().all())
        assert bool(source.isnan().all())
        target.fill_(1)
        event = streams.upload(target, source.fill_(2), None)
        assert bool((target == 2).all() if event.done else target.isnan().all())


def test_a_copy_poisons_its_target_no_sooner_than_its_queue_permits() -> None:
    """Going down to the memory it came up from: the copy up may still have to be made."""
    for seed in range(50):
        streams = late(seed)
        host, memory = numbers(streams, 3, device=False), numbers(streams, 3)
        host.fill_(7)
        streams.compute_waits(streams.upload(memory, host, None))
        streams.launch(lambda memory=memory: memory.add_(1))
        streams.host_waits(streams.download(host, memory))
        assert host.tolist() == [8.0] * 3


def test_an_event_that_nothing_brings_about_is_an_error_that_names_the_queues() -> None:
    streams, foreign = late(0), late(1)
    foreign.launch(lambda: None)
    event = foreign.compute_event()
    event.done = False
    streams.compute_waits(event)
    done = streams.compute_event()
    with pytest.raises(RuntimeError, match=r"queues \['compute'\] wait"):
        streams.host_waits(done)


def test_an_exception_in_queued_work_comes_out_unchanged_and_stays() -> None:
    class Broken(Exception):
        pass

    def fail() -> None:
        raise Broken("this work is broken")

    for seed in range(20):
        streams = late(seed)
        memory, host = numbers(streams, 1), numbers(streams, 1, device=False)
        with pytest.raises(Broken, match="this work is broken"):  # noqa: PT012 - any of these calls may run it
            streams.launch(fail)
            streams.host_waits(streams.compute_event())
        with pytest.raises(Broken):
            streams.upload(memory, host, None)


def test_queued_work_may_launch_but_not_wait() -> None:
    streams, order = late(0), list[str]()

    def work() -> None:
        order.append("first")
        streams.launch(lambda: order.append("inside"))
        order.append("last")

    streams.launch(work)
    streams.host_waits(streams.compute_event())
    assert order == ["first", "inside", "last"]

    def launch_and_wait() -> None:
        streams.launch(streams.compute_event)  # fails at once, or when it runs
        streams.host_waits(streams.compute_event())

    with pytest.raises(RuntimeError, match="launch and capture only"):
        launch_and_wait()


def test_queued_work_keeps_the_gradient_mode_it_was_queued_in() -> None:
    streams, modes = late(0), list[bool]()
    with torch.no_grad():
        streams.launch(lambda: modes.append(torch.is_grad_enabled()))
    streams.launch(lambda: modes.append(torch.is_grad_enabled()))
    with torch.no_grad():
        streams.host_waits(streams.compute_event())
    assert modes == [False, True]


def test_recording_runs_the_work_in_its_turn() -> None:
    for seed in range(20):
        streams, order = late(seed), list[str]()
        streams.launch(lambda order=order: order.append("before"))
        replay = streams.capture(lambda order=order: order.append("work"))
        streams.launch(lambda order=order: order.append("after"))
        streams.launch(replay)
        streams.host_waits(streams.compute_event())
        assert order == ["before", "work", "after", "work"]


def test_a_copy_between_unlike_tensors_is_refused() -> None:
    streams = late(0)
    memory, host = streams.allocate(64), streams.pinned(64)
    for to_device, from_host in (
        (memory[:8], host[:9]),
        (memory[::2], host[:32]),
        (memory.view(torch.int32), host.view(torch.float32)),
    ):
        with pytest.raises(ValueError, match="contiguous tensors of one size and type"):
            streams.upload(to_device, from_host, None)


def test_the_kernels_are_those_given_or_the_host_ones() -> None:
    assert late(0).kernels is NO_KERNELS
    assert LateStreams(0).kernels.__name__ == "tests.doubles.host_kernels"


NO_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from adaptive_rec.embedding.staged.cuda_streams import CudaStreams
from adaptive_rec.errors import ConfigError
try:
    CudaStreams(torch.device("cuda"))
except ConfigError as error:
    print(error)
"""


def test_without_triton_a_cuda_run_is_refused_in_words() -> None:
    done = subprocess.run([sys.executable, "-c", NO_TRITON], capture_output=True, text=True, timeout=600)
    assert "run.device=cuda needs Triton" in done.stdout, done.stdout + done.stderr


# Several threads -----------------------------------------------------------------------------------------------------


def exchange(streams: Streams, batches: int = 200, size: int = 1000) -> list[float]:
    """As `train`, with one thread that sends, one that computes, one that fetches, each as fast as it can."""
    pinned = [numbers(streams, size, device=False) for _ in range(SLOTS)]
    on_device = [numbers(streams, size) for _ in range(SLOTS)]
    results, home = numbers(streams, batches), numbers(streams, batches, device=False)
    free, sent, computed = queue.Queue[Any](), queue.Queue[Any](), queue.Queue[Any]()

    def send() -> None:
        for batch in range(batches):
            slot, uploaded, released = (batch, None, None) if batch < SLOTS else free.get(timeout=300)
            if uploaded is not None:
                streams.host_waits(uploaded)
            pinned[slot].fill_(batch)
            sent.put((batch, slot, streams.upload(on_device[slot], pinned[slot], released)))

    def compute() -> None:
        for _ in range(batches):
            batch, slot, uploaded = sent.get(timeout=300)
            streams.compute_waits(uploaded)
            streams.launch(lambda s=slot, b=batch: torch.add(on_device[s][-1], 1, out=results[b]))
            free.put((slot, uploaded, streams.compute_event()))
            computed.put((batch, streams.download(home[batch : batch + 1], results[batch : batch + 1])))

    def fetch() -> list[float]:
        read = []
        for _ in range(batches):
            batch, downloaded = computed.get(timeout=300)
            streams.host_waits(downloaded)
            read.append(float(home[batch]))
        return read

    with ThreadPoolExecutor(2) as workers:
        others = [workers.submit(send), workers.submit(fetch)]
        compute()
        others[0].result()
        read: list[float] = others[1].result()
    return read


def test_three_threads_may_share_the_late_device() -> None:
    for seed in range(10):
        assert exchange(late(seed)) == expected(200)


# On a real device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda() -> Iterator[CudaStreams]:
    """Streams on which anything that makes the host wait for the device, but for `host_waits`, is an error."""
    streams = CudaStreams(torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    yield streams
    torch.cuda.set_sync_debug_mode("default")


@gpu
@needs_cuda
def test_cuda_copies_there_and_back_keep_every_byte(cuda: CudaStreams) -> None:
    random = np.random.default_rng(0)
    for size in (0, 1, 1000, 1_000_000):
        values = torch.from_numpy(random.normal(size=size))
        up, back = cuda.pinned(8 * size).view(torch.float64), cuda.pinned(8 * size).view(torch.float64)
        memory = cuda.allocate(8 * size).view(torch.float64)
        assert size == 0 or up.is_pinned()
        up.copy_(values)
        cuda.compute_waits(cuda.upload(memory, up, None))
        cuda.launch(lambda memory=memory: memory.mul_(2))
        cuda.host_waits(cuda.download(back, memory))
        assert torch.equal(back, values * 2)


@gpu
@needs_cuda
@pytest.mark.parametrize("size", [5, 3_000_000])
def test_cuda_queues_overlap_without_mixing_anything_up(cuda: CudaStreams, size: int) -> None:
    assert train(cuda, size=size, batches=200) == expected(200)
    assert exchange(cuda, size=size) == expected(200)


@gpu
@needs_cuda
def test_a_missing_wait_shows_on_cuda_too(cuda: CudaStreams) -> None:
    """Else the test above proves nothing."""
    assert train(cuda, "compute", size=10_000_000) != expected()


@gpu
@needs_cuda
def test_cuda_recordings_of_a_network_are_made_and_replayed_while_another_thread_copies(cuda: CudaStreams) -> None:
    torch.cuda.set_sync_debug_mode("default")  # building and recording may wait, replaying may not
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).to(cuda.device)
    parameters = list(net.parameters())
    x = numbers(cuda, 512 * 64).view(512, 64)
    cuda.launch(lambda: x.copy_(torch.randn(512, 64, device=cuda.device)))

    def recording(lines: int, out: list[torch.Tensor]) -> Callable[[], None]:
        def work() -> None:
            for static, grad in zip(out, torch.autograd.grad(net(x[:lines]).square().sum(), parameters), strict=True):
                static.copy_(grad)

        return work

    stop = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        copying = worker.submit(copy_until, cuda, stop)
        try:
            outs = [[torch.zeros_like(p) for p in parameters] for _ in range(4)]
            works = [recording(128 * (k + 1), out) for k, out in enumerate(outs)]
            replays = [cuda.capture(work) for work in works]
            torch.cuda.set_sync_debug_mode("error")
            for k in [3, 0, 2, 1] * 50:  # in another order than they were made
                for out in outs[k]:
                    cuda.launch(out.zero_)
                cuda.launch(replays[k])
            replayed = [[out.clone() for out in out_k] for out_k in outs]
            for work in works:
                cuda.launch(work)
            cuda.host_waits(cuda.compute_event())
        finally:
            stop.set()
        assert copying.result() > 0
    torch.cuda.set_sync_debug_mode("default")
    for mine, eager in zip(replayed, outs, strict=True):
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b)


@gpu
@needs_cuda
def test_cuda_recordings_may_be_dropped_and_made_again(cuda: CudaStreams) -> None:
    """As for a larger batch: all recordings except those that the streams keep are dropped before the next is made."""
    total = torch.zeros((), device=cuda.device)
    for lines in (10, 1000, 100_000):
        x = numbers(cuda, lines)
        cuda.launch(lambda x=x: x.fill_(1))
        torch.cuda.set_sync_debug_mode("default")
        replay = cuda.capture(lambda x=x: total.copy_((x * 2).sum()))
        torch.cuda.set_sync_debug_mode("error")
        cuda.launch(lambda x=x: x.fill_(3))
        cuda.launch(replay)
        home = numbers(cuda, 1, device=False)
        cuda.host_waits(cuda.download(home, total.view(1)))
        assert home.tolist() == [6.0 * lines]
        del replay


@gpu
@needs_cuda
def test_cuda_garbage_that_holds_a_recording_does_not_spoil_the_next(cuda: CudaStreams) -> None:
    total = torch.zeros((), device=cuda.device)
    torch.cuda.set_sync_debug_mode("default")
    cuda.capture(lambda: total.fill_(1))  # the first one is kept
    garbage: list[Any] = [cuda.capture(lambda: total.fill_(2))]
    garbage.append(garbage)
    del garbage

    def work() -> None:
        kept = [[number] for number in range(100_000)]  # enough for a collection
        total.fill_(len(kept))

    replay = cuda.capture(work)
    assert gc.isenabled()
    cuda.launch(replay)
    torch.cuda.set_sync_debug_mode("error")
    home = numbers(cuda, 1, device=False)
    cuda.host_waits(cuda.download(home, total.view(1)))
    assert home.tolist() == [100_000.0]


@gpu
@needs_cuda
def test_cuda_work_of_the_side_queue_is_recorded_while_other_threads_go_on(cuda: CudaStreams) -> None:
    """All recordings share their memory. The training thread makes them, and records computation between them."""
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def worker(number: int) -> list[bool]:
        lines = 1000 * (number + 1)
        given, found = numbers(cuda, lines), numbers(cuda, lines)
        sent = numbers(cuda, lines, device=False)

        def work() -> None:
            found.copy_(torch.cumsum(torch.sort(given, stable=True)[0], 0))

        right, find = list[bool](), work
        for turn in range(60):
            sent.copy_(torch.randperm(lines).float() % (turn % 9 + 3))
            here = cuda.upload(given, sent, None)
            cuda.launch_aside(find, here)
            home = numbers(cuda, lines, device=False)
            cuda.host_waits(cuda.download_aside([(home, found)]))
            right.append(home.tolist() == torch.cumsum(torch.sort(sent)[0], 0).tolist())
            if turn in (5, 20):
                recorded: Future[Any] = Future()
                asked.put((work, recorded))
                find = recorded.result(60) if turn == 20 else work
        return right

    torch.cuda.set_sync_debug_mode("default")
    total, x, replays = numbers(cuda, 1), numbers(cuda, 4096), list[Any]()
    cuda.launch(x.zero_)
    with ThreadPoolExecutor(4) as workers:
        found = [workers.submit(worker, number) for number in range(4)]
        for k in range(8):
            work, recorded = asked.get(timeout=300)
            recorded.set_result(cuda.record_aside(work))
            replays.append(cuda.capture(lambda k=k: total.copy_((x + k).sum().view(1))))
            cuda.launch(replays[-1])
            torch.cuda.synchronize()
        assert [all(each.result(60)) for each in found] == [True] * 4
    for replay in replays * 20:
        cuda.launch(replay)
    home = numbers(cuda, 1, device=False)
    cuda.host_waits(cuda.download(home, total))
    assert home.tolist() == [7 * 4096.0]


def copy_until(streams: CudaStreams, stop: threading.Event) -> int:
    """Allocate, pin and copy all the time; returns the number of copies that came back whole."""
    copies = 0
    while not stop.is_set() or not copies:
        size = 1000 + 977 * (copies % 500)
        host, memory = numbers(streams, size, device=False), numbers(streams, size)
        streams.host_waits(streams.upload(memory, host.fill_(copies), None))
        streams.host_waits(streams.download(host.fill_(-1), memory))
        assert bool((host == copies).all())
        copies += 1
    return copies


@gpu
@needs_cuda
def test_cuda_memory_that_was_dropped_is_not_given_away_while_computation_reads_it(cuda: CudaStreams) -> None:
    size = 4_000_000
    host, zeros = numbers(cuda, size, device=False).fill_(1), numbers(cuda, size, device=False).zero_()
    a = torch.randn(4096, 4096, device=cuda.device)
    sums = torch.zeros(30, device=cuda.device)
    for k in range(30):
        memory = numbers(cuda, size)
        event = cuda.upload(memory, host, None)
        cuda.compute_waits(event)
        cuda.host_waits(event)
        cuda.launch(lambda: torch.mm(a, a))  # so that the sum comes late
        cuda.launch(lambda k=k, memory=memory: torch.sum(memory, 0, out=sums[k]))
        del memory
        again = numbers(cuda, size)
        cuda.host_waits(cuda.upload(again, zeros, None))
        del again
    home = numbers(cuda, 30, device=False)
    cuda.host_waits(cuda.download(home, sums))
    assert home.tolist() == [float(size)] * 30


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
    return losses, [runtime.store.contents.export(table)[0] for table in range(4)]


@gpu
@needs_cuda
@pytest.mark.parametrize("optimizer", NAMED_RULES)
@pytest.mark.parametrize(("policy", "budget_bytes"), [("hybrid", 0), ("hotline", 20_000), ("device_only", 0)])
def test_training_on_a_cuda_device_equals_plain_steps_on_the_cpu(
    policy: str, budget_bytes: int, optimizer: str
) -> None:
    losses, tables = train_on("cuda", policy, optimizer, budget_bytes)
    plain_losses, plain_tables = train_on("cpu", "hybrid", optimizer, 0)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-10)
    for mine, plain in zip(tables, plain_tables, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=0, atol=1e-9)
