"""A launcher takes the compiled kernel that Triton would take, on a made-up device: nothing is launched, but all is compiled."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
targets = importlib.import_module("triton.backends.compiler")
triton_copies = importlib.import_module("adaptive_rec.kernels.triton_copies")
KernelLauncher = importlib.import_module("adaptive_rec.kernels.launcher").KernelLauncher


class MadeUpDevice:
    """What Triton asks its driver before and at a launch. It keeps each launch: the hash of what was compiled, grid, stream,
    and arguments."""

    def __init__(self) -> None:
        self.number = 98
        self.launches: list[Any] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), object(), 0, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": 1 << 20},
            unload_module=lambda _: None,
        )

    def get_current_target(self) -> Any:
        return targets.GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 7

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
            count = len(source.signature)
            self.launches.append((metadata.hash, (x, y, z), stream, rest[len(rest) - count :]))

        return launch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> MadeUpDevice:
    made_up = MadeUpDevice()
    monkeypatch.setattr(importlib.import_module("triton.runtime").driver, "_active", made_up)
    return made_up


def rows(dtype: torch.dtype = torch.float32, offset: int = 0) -> Tensor:
    return torch.zeros(40 * 16 + offset, dtype=dtype)[offset:].view(40, 16)


I32, I64 = torch.zeros(41, dtype=torch.int32), torch.zeros(40, dtype=torch.int64)
CASES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((rows(), I32, rows(), None, 40), {}),
    ((rows(torch.bfloat16), I32, rows(torch.bfloat16), None, 40), {}),
    ((rows(torch.float64), I32, rows(torch.float64), None, 40), {}),
    ((rows(offset=1), I32, rows(), None, 40), {}),
    ((rows(), I32, rows(offset=1), None, 40), {}),
    ((rows(), I64, rows(), None, 40), {}),
    ((rows(), None, rows(), I32, 40), {}),
    ((rows(), I32, rows(), None, 1 << 31), {}),
    ((rows(), I32, rows(), None, 40), {"D": 8}),
    ((rows(), I32, rows(), None, 40), {"ROWS": 32}),
    ((rows(), I32, rows(), None, 40), {"num_warps": 2}),
]
"""Launches of `copy_rows`, each of another kernel than all others."""
ALIKE = [(rows(), I32[1:], rows(), None, 1), (rows(), I32[:3], rows(), None, 48)]
"""Launches of the kernel of the first case."""


def launch(launcher: Any, arguments: tuple[Any, ...], given: dict[str, Any]) -> None:
    named = {"D": 16, "ROWS": 16, "BLOCK_D": 16, "num_warps": 4, "enable_fp_fusion": True} | given
    launcher[(3,)](*arguments, **named)


def test_every_launch_is_that_of_triton(device: MadeUpDevice) -> None:
    """In any order, and the second time, when the launcher has the compiled kernel, as the first time, and on another device."""
    jitted, launcher = triton_copies.copy_rows.kernel, KernelLauncher(triton_copies.copy_rows.kernel)
    for arguments, given in CASES:
        launch(jitted, arguments, given)
    wanted, device.launches = device.launches, []
    assert len({compiled for compiled, *_ in wanted}) == len(CASES)
    for step in (1, 1, -1):
        device.launches = []
        for arguments, given in CASES[::step]:
            launch(launcher, arguments, given)
        for (*one, arguments), (*other, same) in zip(device.launches, wanted[::step], strict=True):
            assert one == other
            assert all(a is b for a, b in zip(arguments, same, strict=True))
    assert len(launcher._compiled) == len(CASES)
    for arguments in ALIKE:
        launch(launcher, arguments, {})
    assert len(launcher._compiled) == len(CASES)
    device.number += 1
    launch(launcher, *CASES[0])
    assert len(launcher._compiled) == len(CASES) + 1


def test_what_a_launcher_does_not_know_goes_triton_s_way(device: MadeUpDevice) -> None:
    launcher = KernelLauncher(triton_copies.copy_rows.kernel)
    for _ in range(2):
        launch(launcher, (rows(), I32, rows(), None, True), {})
    assert launcher._compiled == {}
    assert len(device.launches) == 2
