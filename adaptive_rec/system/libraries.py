"""How a command loads torch and Numba: without what it does not use of Numba, and without settings of the working directory."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

NEW_OBJECTS = 50_000
"""Objects with references that are made between two collections of garbage. Loading torch and Numba makes hundreds of thousands
that all stay; Python's 700 has them looked through again and again, a tenth of the time."""
NUMBA_FILE = ".numba_config.yaml"
PRIVATE = ("_load_overload", "_guard_against_spurious_io_errors", "load_overload")
"""Methods of Numba's cache without which kernels load as ever."""


def ignore_file() -> str:
    """Have Numba ignore a `.numba_config.yaml` of the working directory, which could name a library to load. Returns a warning;
    empty where there is no such file. Call it before Numba is loaded, which reads the file then and again before it compiles."""
    if not os.path.lexists(NUMBA_FILE):
        return ""
    modules = cast("dict[str, Any]", sys.modules)
    before = modules.get("yaml")
    modules["yaml"] = None  # Numba reads the file only where it can import this
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("numba.core.config")
    finally:
        del modules["yaml"]
        if before is not None:
            modules["yaml"] = before
    return f"{NUMBA_FILE} of the working directory is not read; Numba's settings are its variables NUMBA_..."


def import_quickly() -> None:
    """Put off what Numba loads without using it, and collect garbage seldom while torch and Numba load. Call it before they are
    loaded, in the process of a command only."""
    if not any(isinstance(finder, ChangingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ChangingFinder())


def end_without_collection() -> None:
    """Let a process that ends not look through all that is loaded for garbage, which takes half a second. Triton would report
    what is left as leaked, on the terminal."""
    if "triton" not in sys.modules:
        gc.freeze()


class ChangingFinder(MetaPathFinder):
    """Finds modules that are loaded in another way than usual."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        kind = CHANGED.get(name)
        spec = PathFinder.find_spec(name, path, target) if kind is not None else None
        if spec is not None and spec.loader is not None and kind is not None:
            spec.loader = kind(spec.loader)
        return spec


class Changed(Loader):
    """Executes a module as another loader does. Subclasses change what is around it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # which finds its files, too
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)


class WithoutCollections(Changed):
    """Collects garbage seldom while a library is loaded."""

    def exec_module(self, module: ModuleType) -> None:
        before = gc.get_threshold()
        gc.set_threshold(NEW_OBJECTS)
        try:
            super().exec_module(module)
        finally:
            gc.set_threshold(*before)


class WithoutRegistries(Changed):
    """Lets our kernels load from their files without all that Numba can compile, which it loads when it compiles. Functions of a
    user load as ever: some need it, such as ufuncs."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        cache = getattr(module, "Cache", None)
        if cache is None or not all(hasattr(cache, name) for name in PRIVATE):
            return  # of another version
        load_whole = cache.load_overload

        def load_overload(self: Any, signature: Any, context: Any) -> Any:
            if not self._py_func.__module__.startswith("adaptive_rec."):
                return load_whole(self, signature, context)
            importlib.import_module("numba.core.runtime").rtsys.initialize(context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(signature, context)

        cache.load_overload = load_overload


CHANGED: dict[str, type[Changed]] = {
    "torch": WithoutCollections, "numba": WithoutCollections, "numba.core.caching": WithoutRegistries,
}  # fmt: skip
