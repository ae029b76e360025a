"""What the machine can do at best: copies between host and device, copies on the device, matrix products, launches."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.contestants import Where

REPEATS = 7
COPY_BYTES = 256 << 20
STAGING_BYTES = 1 << 20
"""About what a batch sends in one go."""
GEMM_SIZE = 8192
HOST_ROWS = 8 << 20


def measure_ceilings(where: Where) -> dict[str, Any]:
    """Bytes, operations and launches a second; the best of some repetitions of each."""
    small = bool(where.rehearsal)
    size, gemm = (1 << 20, 128) if small else (COPY_BYTES, GEMM_SIZE)
    found: dict[str, Any] = {**copies(where, size), **copies(where, min(size, STAGING_BYTES), "_of_1_mib")}
    found["device_copy_bytes_per_second"] = device_copy(where, 4 * size)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float64", torch.float64)):
        n = gemm if dtype is not torch.float64 else max(64, gemm // 2)
        a, b = (torch.randn(n, n, device=where.device, dtype=dtype) for _ in range(2))
        found[f"gemm_{name}_flops_per_second"] = 2 * n**3 / best(where, partial(torch.matmul, a, b))
    found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    found["launch_seconds"] = launch_seconds(where)
    for width in (16, 128):
        found[f"host_gather_of_{4 * width}_byte_rows_bytes_per_second"] = host_gather(width, small)
    return found


def device_copy(where: Where, size: int) -> float:
    """Bytes read and bytes written count."""
    one, two = device_bytes(where, size), device_bytes(where, size)
    return 2 * size / best(where, lambda: two.copy_(one))


def device_bytes(where: Where, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=where.device)


def best(where: Where, work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the fastest repetition, by the device's clock where it has one."""
    work()
    where.sync()
    seconds = []
    for _ in range(repeats):
        if where.device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)


def copies(where: Where, size: int, ending: str = "") -> dict[str, float]:
    """Pinned memory to the device, back, and both at once."""
    cuda = where.device.type == "cuda"
    host = [torch.zeros(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
    device = [device_bytes(where, size) for _ in range(2)]

    def up() -> None:
        device[0].copy_(host[0], non_blocking=True)

    def down() -> None:
        host[1].copy_(device[1], non_blocking=True)

    def both() -> None:
        if cuda:
            _at_once(up, down)
        else:
            up()
            down()

    return {
        f"up_bytes_per_second{ending}": size / best(where, up),
        f"down_bytes_per_second{ending}": size / best(where, down),
        f"both_ways_bytes_per_second{ending}": 2 * size / best(where, both),
    }


_STREAMS: list[Any] = []


def _at_once(up: Callable[[], None], down: Callable[[], None]) -> None:
    if not _STREAMS:
        _STREAMS.extend([torch.cuda.Stream(), torch.cuda.Stream()])
    compute = torch.cuda.current_stream()
    for stream, copy in zip(_STREAMS, (up, down), strict=True):
        stream.wait_stream(compute)
        with torch.cuda.stream(stream):
            copy()
    for stream in _STREAMS:  # not before both are on their way: the second would wait for the first
        compute.wait_stream(stream)


def launch_seconds(where: Where, launches: int = 200) -> float:
    """What one small kernel costs the host, launched from Python through torch."""
    one = torch.zeros(1, device=where.device)

    def many() -> None:
        for _ in range(launches):
            one.add_(1)

    many()
    where.sync()
    began = time.perf_counter()
    many()
    where.sync()
    return (time.perf_counter() - began) / launches


def host_gather(width: int, small: bool) -> float:
    """Bytes a second of random rows read from host memory by all cores, into one piece."""
    rows = 1 << 10 if small else HOST_ROWS * 16 // width
    table = torch.ones(rows, width)  # zeros would be one page of memory, read again and again
    wanted = torch.from_numpy(np.random.default_rng(1).integers(0, rows, 1 << (10 if small else 20)))
    out = torch.empty(len(wanted), width)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        torch.index_select(table, 0, wanted, out=out)
        seconds.append(time.perf_counter() - began)
    return out.nbytes / min(seconds)
