"""The calls of kernels/cuda.py in three forms: on host memory, through Triton's interpreter, compiled on a real device."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import pytest
import torch

FORMS = ["host", "interpreted", pytest.param("compiled", marks=pytest.mark.gpu)]


class Form:
    """One form: its kernels and the device that tensors for it have to be on."""

    def __init__(self, name: str, kernels: Any) -> None:
        self.name, self.kernels = name, kernels
        self.device = torch.device("cuda" if name == "compiled" else "cpu")


def load_copy(name: str) -> ModuleType:
    """A copy of a module of the kernels, under a name of its own."""
    spec = importlib.util.find_spec(f"adaptive_rec.kernels.{name}")
    assert spec is not None
    assert spec.origin is not None
    copied = importlib.util.spec_from_file_location(f"interpreted_{name}", spec.origin)
    assert copied is not None
    assert copied.loader is not None
    module = importlib.util.module_from_spec(copied)
    copied.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def interpreted_kernels() -> ModuleType:
    """A copy of kernels/cuda.py whose kernels Triton's interpreter runs; the module itself still compiles for a device.

    What `triton.jit` returns is decided when it is called, by TRITON_INTERPRET.
    """
    pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
    importlib.import_module("adaptive_rec.kernels.cuda")  # first: the copies below must not be what it is made of
    module = load_copy("cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in ("triton_rows", "triton_copies"):
            setattr(module, name, load_copy(name))
        lists: Any = load_copy("cuda_lists")
        lists.triton_lists = load_copy("triton_lists")
        module.find_lists, module.find_places = lists.find_lists, lists.find_places  # type: ignore[attr-defined]
    return module


@pytest.fixture
def interpreter(interpreted_kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The interpreted kernels, ready to run.

    Triton's own library (tl.sum, tl.max) was made when Triton was imported, which here was without the interpreter, so
    it stands in for by the operations it is made of.
    """
    import triton.language as tl

    def reduction(combine: Any) -> Any:
        def reduce(values: Any, axis: int) -> Any:
            result = tl.reduce(values, axis, combine)
            if len(values.shape) == 1:  # Triton 3.6 leaves an array of one number, of which NumPy 2.4 makes no int
                result.handle.data = result.handle.data.reshape(())
            return result

        return reduce

    monkeypatch.setattr(tl, "sum", reduction(tl.standard._sum_combine))
    monkeypatch.setattr(tl, "max", reduction(tl.standard._elementwise_max))
    return interpreted_kernels


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    if request.param == "host":
        return Form("host", importlib.import_module("tests.doubles.host_kernels"))
    if request.param == "interpreted":
        return Form("interpreted", request.getfixturevalue("interpreter"))
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
    return Form("compiled", importlib.import_module("adaptive_rec.kernels.cuda"))
