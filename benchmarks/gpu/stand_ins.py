"""What must be installed for these benchmarks, and stand-ins for libraries that the package imports but they never use."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

NEEDED = ("torch", "numpy", "numba", "pydantic", "pytest")
NEEDED_ON_A_GPU = ("triton",)

UNUSED: dict[str, tuple[str, ...]] = {
    "backports": (),
    "backports.zstd": ("ZstdError",),
    "safetensors": ("SafetensorError",),
    "safetensors.numpy": (),
    "safetensors.torch": (),
}
"""Readers of .zst files and of checkpoints, with the names among theirs that are exceptions."""


def missing(on_gpu: bool) -> list[str]:
    """Needed libraries that are not installed."""
    names = NEEDED + (NEEDED_ON_A_GPU if on_gpu else ())
    return [name for name in names if importlib.util.find_spec(name) is None]


def install() -> list[str]:
    """Put a stand-in where an unused library is missing; using it raises. Returns the names."""
    absent = {name.split(".")[0] for name in UNUSED if not _found(name.split(".")[0])}
    for name, exceptions in UNUSED.items():
        if name.split(".")[0] in absent:
            sys.modules[name] = _stand_in(name, exceptions)
    return sorted(absent)


def _found(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _stand_in(name: str, exceptions: tuple[str, ...]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # a package, so that what lies in it can be imported
    for exception in exceptions:
        setattr(module, exception, type(exception, (Exception,), {}))

    def missing_name(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def refuse(*_: Any, **__: Any) -> Any:
            raise ImportError(f"{name} is not installed: {attribute} cannot be used")

        return refuse

    module.__getattr__ = missing_name  # type: ignore[method-assign]
    return module
