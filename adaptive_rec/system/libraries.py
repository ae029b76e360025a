"""How a command loads torch and Numba: without what it does not use of them, and without settings of the working directory."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

NEW_OBJECTS = 50_000
"""Objects with references that are made between two collections of garbage. Loading torch and Numba makes hundreds of thousands
that all stay; Python's 700 has them looked through again and again, a tenth of the time."""
REGISTRATIONS = "torch._meta_registrations"
"""Operators of tensors without memory, written in Python: a quarter of the time that torch takes to load."""
THEIR_USERS = ("torch._dynamo", "torch._decomp", "torch._inductor", "torch._prims", "torch._refs")
"""Modules of torch that use such tensors, by this name or below."""
NOT_PREPARED = (AttributeError, ImportError, RuntimeError)
"""Errors by which another version of torch shows that it needs its registrations."""
NUMBA_FILE = ".numba_config.yaml"
ARRAY_FUNCTIONS, CACHING, BLAS = "numba.np.arraymath", "numba.core.caching", "scipy.linalg.cython_blas"


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
    """Put off what torch and Numba load without using it, and collect garbage seldom while they load. Call it before they are
    loaded, in the process of a command only: a user's program gets all of them."""
    for name, finder in (("torch", TorchFinder()), ("numba", ChangingFinder())):
        if name not in sys.modules and not _among_finders(type(finder)):
            sys.meta_path.insert(0, finder)


def end_without_collection() -> None:
    """Let a process that ends not look through all that is loaded for garbage, which takes half a second. Triton would report
    what is left as leaked, on the terminal."""
    if "triton" not in sys.modules:
        gc.freeze()


def load_all_of_torch() -> None:
    """Load what `import_quickly` has put off. Call it before tensors without memory are made, and before a user's classes are
    loaded, which may make some."""
    if _among_finders(TorchFinder):
        _remove_finders(TorchFinder)
        if sys.modules.pop(REGISTRATIONS, None) is not None:
            importlib.import_module(REGISTRATIONS)


class TorchFinder(MetaPathFinder, Loader):
    """Finds an empty module for torch's registrations, and loads them before a module that uses them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == REGISTRATIONS:
            return ModuleSpec(name, self)
        if name.startswith(THEIR_USERS) and REGISTRATIONS in sys.modules:
            load_all_of_torch()
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PutOff(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty, unless this version of torch cannot do without it."""
        try:
            _prepare_generators()
        except NOT_PREPARED:
            spec = PathFinder.find_spec(REGISTRATIONS, sys.modules["torch"].__path__)
            assert spec is not None
            assert spec.loader is not None
            _remove_finders(TorchFinder)
            module.__class__ = ModuleType
            module.__spec__, module.__file__ = spec, spec.origin
            spec.loader.exec_module(module)


def _prepare_generators() -> None:
    """Prepare torch's generators, which in torch 2.13 the registrations do. Raises an error where they do not work."""
    torch = sys.modules["torch"]
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
    torch.Generator().manual_seed(1)


class PutOff(ModuleType):
    """An empty module in the place of torch's registrations; whoever reads a name of it gets that of the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` looks through all modules for their files
            raise AttributeError(name)
        load_all_of_torch()
        return getattr(sys.modules[REGISTRATIONS], name)


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


class WithoutBlas(Changed):
    """Lets array functions load without SciPy's linear algebra, of which they only see whether it is there."""

    def exec_module(self, module: ModuleType) -> None:
        modules, before = cast("dict[str, Any]", sys.modules), sys.modules.get(BLAS)
        modules[BLAS] = None  # whoever imports it gets an ImportError
        try:
            super().exec_module(module)
        finally:
            del modules[BLAS]
            if before is not None:
                modules[BLAS] = before
        if hasattr(module, "_HAVE_BLAS"):
            vars(module)["_HAVE_BLAS"] = find_spec("scipy") is not None


class WithoutRegistries(Changed):
    """Lets compiled kernels load from their files without all that Numba can compile, which it loads when it compiles."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        cache = getattr(module, "Cache", None)
        if cache is None or not all(hasattr(cache, name) for name in ("_load_overload", "_guard_against_spurious_io_errors")):
            return  # of another version

        def load_overload(self: Any, signature: Any, context: Any) -> Any:
            importlib.import_module("numba.core.runtime").rtsys.initialize(context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(signature, context)

        cache.load_overload = load_overload


CHANGED: dict[str, type[Changed]] = {
    "torch": WithoutCollections, "numba": WithoutCollections, ARRAY_FUNCTIONS: WithoutBlas, CACHING: WithoutRegistries,
}  # fmt: skip


def _among_finders(kind: type[MetaPathFinder]) -> bool:
    return any(isinstance(finder, kind) for finder in sys.meta_path)


def _remove_finders(kind: type[MetaPathFinder]) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, kind)]
