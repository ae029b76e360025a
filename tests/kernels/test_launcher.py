"""A launcher takes the compiled kernel that Triton would take, on a made-up device: nothing is launched, but all is compiled."""

from __future__ import annotations

import ctypes
import importlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
targets = importlib.import_module("triton.backends.compiler")
triton_copies = importlib.import_module("adaptive_rec.kernels.triton_copies")
direct_launch = importlib.import_module("adaptive_rec.kernels.direct_launch")
KernelLauncher = importlib.import_module("adaptive_rec.kernels.launcher").KernelLauncher


class MadeUpDevice:
    """What Triton asks its driver before and at a launch. It keeps each launch: the hash of what was compiled, grid, stream,
    and arguments."""

    def __init__(self) -> None:
        self.number = 98
        self.function: Any = object
        self.launches: list[Any] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), self.function(), 0, 0, 1024),
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
        self.source = source

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


NUMBERS = itertools.count(1000)
"""Of devices for which nothing was compiled yet."""


class MadeUpDriver:
    """Tells the layout of a kernel's arguments as C lays them out, and keeps launches."""

    def __init__(self, source: Any, hidden: int) -> None:
        kinds = [kind for kind in source.signature.values() if kind != "constexpr"]
        types = [{"i32": ctypes.c_int32, "i64": ctypes.c_int64}.get(kind, ctypes.c_void_p) for kind in kinds]
        fields = [(f"f{number}", each) for number, each in enumerate([*types, *[ctypes.c_void_p] * hidden])]
        self.layout: Any = type("Layout", (ctypes.Structure,), {"_fields_": fields})
        self.fields = [getattr(self.layout, name) for name, _ in fields]
        self.launches: list[Any] = []
        self.cuGetErrorString = lambda *_: 0

    def cuFuncGetParamInfo(self, function: int, number: int, offset: Any, size: Any) -> int:
        if number >= len(self.fields):
            return 1
        offset._obj.value, size._obj.value = self.fields[number].offset, self.fields[number].size
        return 0

    def cuLaunchKernel(self, function: int, *rest: Any) -> int:
        *place, params, extra = rest
        packed = extra._obj
        size = ctypes.c_size_t.from_address(packed.size).value
        address = ctypes.cast(ctypes.addressof(packed) + type(packed).buffer.offset, ctypes.POINTER(ctypes.c_void_p))[0]
        last = self.fields[-1]
        assert (packed.buffer_key, packed.size_key, packed.end, params, size) == (1, 2, None, None, last.offset + last.size)
        held = self.layout.from_buffer_copy(ctypes.string_at(address, size) + bytes(8))
        self.launches.append((function, place, [getattr(held, name) or 0 for name, _ in self.layout._fields_]))
        return 0


class OnDevice(torch.Tensor):
    is_cuda = True  # type: ignore[assignment]


def on_device(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.as_subclass(OnDevice) if isinstance(each, Tensor) else each for each in arguments)


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_the_driver_is_given_what_the_kernel_takes(
    device: MadeUpDevice, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    device.function = lambda: 4711
    jitted = triton_copies.copy_rows.kernel
    monkeypatch.setattr(direct_launch, "driver_calls", lambda: driver)
    for arguments, given in CASES:
        device.number = next(NUMBERS)
        driver = MadeUpDriver(SimpleNamespace(signature={}), 0)
        launch(jitted, arguments, given)
        driver = MadeUpDriver(device.source, hidden)
        launcher = KernelLauncher(jitted)
        device.launches = []
        for _ in range(3):
            launch(launcher, on_device(arguments), given)
        assert len(device.launches) == 1, "the first one is Triton's"
        taken = [each for name, each in zip(jitted.arg_names, arguments, strict=False)
                 if device.source.signature[name] != "constexpr"]  # fmt: skip
        values = [each.data_ptr() if isinstance(each, Tensor) else each for each in taken]
        threads = 32 * {"num_warps": 4, **given}["num_warps"]
        where = [(function, place[:6], place[7]) for function, place, _ in driver.launches]
        assert where == [(4711, [3, 1, 1, threads, 1, 1], 7)] * 2
        assert [found for *_, found in driver.launches] == [[*values, *[0] * hidden]] * 2
        launch(launcher, arguments, given)
        assert len(device.launches) == 2, "tensors of the host are Triton's to refuse"
        assert len(driver.launches) == 2
        monkeypatch.setattr(direct_launch, "LOCKED", {each.data_ptr() for each in arguments if isinstance(each, Tensor)})
        launch(launcher, arguments, given)
        assert len(driver.launches) == 3, "kernels reach memory that is locked"


def test_kernels_with_other_arguments_than_their_source_says_are_left_to_triton(
    device: MadeUpDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.function, device.number = lambda: 4711, next(NUMBERS)
    arguments, given = CASES[0]
    launch(triton_copies.copy_rows.kernel, arguments, given)
    wrong = [
        MadeUpDriver(device.source, 3),
        MadeUpDriver(SimpleNamespace(signature={**device.source.signature, "more": "i32"}), 0),
        MadeUpDriver(SimpleNamespace(signature=dict(list(device.source.signature.items())[1:])), 2),
        SimpleNamespace(cuFuncGetParamInfo=None),
    ]
    for driver in wrong:
        monkeypatch.setattr(direct_launch, "driver_calls", lambda driver=driver: driver)
        launcher, device.launches = KernelLauncher(triton_copies.copy_rows.kernel), []
        for _ in range(2):
            launch(launcher, on_device(arguments), given)
        assert len(device.launches) == 2
