"""Launching of Triton kernels with less work on the calling thread than Triton's own way.

Triton binds a launch's arguments and writes what its kernel depends on as text, each time anew: the five launches of a step take
two thirds of that time here (`docs/log.md`). Kernels are the same ones, and the first launch of each kind is Triton's own. Later
ones go to the driver, if they can (`direct_launch.py`); hooks of Triton's profiler do not see those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from triton.runtime import driver

from adaptive_rec.kernels.direct_launch import DirectLaunch, direct_launch

_INT32_END, _INT64_END = 1 << 31, 1 << 63


class KernelLauncher:
    """A jitted kernel that is launched as it would be itself: ``launcher[grid](*arguments, **constants_and_options)``.

    What Triton compiled is kept by what it depends on: the device, type and alignment of each tensor, which arguments are None,
    the width of whole numbers, constants and options. Everything else goes Triton's way: arguments of other types, kernels under
    its interpreter, and a Triton that gives back nothing to launch.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        params = getattr(kernel, "params", [])
        self._names = [param.name for param in params]
        self._specialised = [not param.do_not_specialize for param in params]
        self._by_alignment = [not (param.do_not_specialize or param.do_not_specialize_on_alignment) for param in params]
        self._compiled: dict[tuple[Any, ...], tuple[Any, DirectLaunch | None]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        key = self._key(arguments, named)
        known = self._compiled.get(key) if key else None
        if key and known:
            compiled, direct = known
            if direct is not None and direct(grid, driver.active.get_current_stream(key[0]), arguments):
                return
            constants = [named[name] for name in self._names[len(arguments) :]]
            compiled[(*grid, 1, 1)[:3]](*arguments, *constants)
            return
        made = self.kernel[grid](*arguments, **named)
        complete = all(name in named for name in self._names[len(arguments) :])
        if key is not None and complete and hasattr(made, "__getitem__"):
            self._compiled[key] = made, direct_launch(made, self._names)

    def _key(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
        """Return what the compiled kernel of a launch depends on, None where that is not known here."""
        if not self._names:
            return None
        key: list[Any] = [driver.active.get_current_device(), *named, *named.values()]
        for argument, specialised, by_alignment in zip(arguments, self._specialised, self._by_alignment, strict=False):
            if isinstance(argument, Tensor):
                key.append(argument.dtype)
                if by_alignment:
                    key.append(argument.data_ptr() % 16 == 0)
            elif argument is None:
                key.append(None)
            elif type(argument) is int and -_INT64_END <= argument < _INT64_END:
                key.append(-_INT32_END <= argument < _INT32_END)
                if specialised:
                    key.append((argument == 1, argument % 16 == 0))
            else:
                return None
        return tuple(key)
