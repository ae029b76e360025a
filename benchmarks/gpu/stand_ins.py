"""What must be installed for these benchmarks, and a stand-in for the library that the package imports but they never use."""

from __future__ import annotations

import importlib.util
import sys
import types

NEEDED = ("torch", "numpy", "numba", "pydantic", "pytest")
NEEDED_ON_A_GPU = ("triton",)


def missing(on_gpu: bool) -> list[str]:
    """Needed libraries that are not installed."""
    names = NEEDED + (NEEDED_ON_A_GPU if on_gpu else ())
    return [name for name in names if importlib.util.find_spec(name) is None]


def install() -> None:
    """Put a stand-in where the reader of .zst files is missing; using it raises."""
    if not is_installed("backports"):
        module = types.ModuleType("backports.zstd")
        module.ZstdError, module.ZstdDecompressor = type("ZstdError", (Exception,), {}), refuse  # type: ignore[attr-defined]
        sys.modules |= {"backports": types.ModuleType("backports"), "backports.zstd": module}


def is_installed(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def refuse() -> None:
    raise ImportError("backports.zstd is not installed: .zst files cannot be read")
