"""Launching of a compiled Triton kernel by the driver itself, which keeps the interpreter's lock.

The places of a kernel's arguments are asked of the driver: a kernel that takes others than its source says is left to Triton.
"""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_char_p, c_size_t, c_void_p
from typing import Any

from adaptive_rec.kernels.driver_calls import LOCKED, check_driver, driver_calls

_POINTER = "P"
_FORMATS = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
"""Of Triton's types of whole numbers; those of pointers begin with a star."""
_WARP = 32
_MOST_HIDDEN = 2
"""Pointers to scratch memory that Triton adds behind a kernel's own arguments; kernels that use it are left to Triton."""
_NO_SUCH_ARGUMENT = 1


class _Packed(ctypes.Structure):
    """Arguments in one block of memory, as `cuLaunchKernel` takes them."""

    _fields_ = (
        ("buffer_key", c_void_p), ("buffer", c_char_p), ("size_key", c_void_p), ("size", c_void_p), ("end", c_void_p),
    )  # fmt: skip


class DirectLaunch:
    """A compiled kernel, and which arguments of its source it takes."""

    def __init__(self, function: int, threads: int, shared_bytes: int, taken: list[int], hidden: int, form: str) -> None:
        """`form`: the layout of the arguments, as of `struct`; the last ones are hidden pointers."""
        self._function, self._block, self._shared_bytes = function, (threads, 1, 1), shared_bytes
        self._taken, self._hidden = taken, (0,) * hidden
        self._pack = struct.Struct(form).pack
        self._size = c_size_t(struct.calcsize(form))
        self._size_address = ctypes.addressof(self._size)
        self._launch = driver_calls().cuLaunchKernel

    def __call__(self, grid: tuple[int, ...], stream: int, arguments: tuple[Any, ...]) -> bool:
        """Launch it, on the context of the calling thread. Returns False where an argument is a tensor of the host that is not
        locked as a whole."""
        values = list[int]()
        for number in self._taken:
            argument = arguments[number]
            if type(argument) is not int:
                address = argument.data_ptr()
                if not argument.is_cuda and address not in LOCKED:
                    return False
                argument = address
            values.append(argument)
        x, y, z = (*grid, 1, 1)[:3]
        if x and y and z:
            packed = _Packed(1, self._pack(*values, *self._hidden), 2, self._size_address, None)
            place = (self._function, x, y, z, *self._block, self._shared_bytes, stream)
            check_driver(self._launch(*place, None, byref(packed)))
        return True


def direct_launch(compiled: Any, names: list[str]) -> DirectLaunch | None:
    """Return how a kernel that Triton compiled is launched, None where only Triton can. `names`: its source's arguments."""
    function: Any = getattr(compiled, "function", None)
    metadata: Any = getattr(compiled, "metadata", None)
    if type(function) is not int or not _is_plain(metadata) or driver_calls().cuFuncGetParamInfo is None:
        return None
    taken, form = list[int](), "@"
    for number, name in enumerate(names):
        kind = str(compiled.src.signature.get(name))
        if kind != "constexpr":
            taken.append(number)
            letter = _POINTER if kind.startswith("*") else _FORMATS.get(kind)
            if letter is None:
                return None
            form += letter
    hidden = _hidden_pointers(function, form)
    if hidden is None:
        return None
    return DirectLaunch(function, _WARP * metadata.num_warps, metadata.shared, taken, hidden, form + _POINTER * hidden)


def _is_plain(metadata: Any) -> bool:
    """Whether a kernel needs nothing but its arguments."""
    unwanted = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size")
    return getattr(metadata, "num_ctas", 0) == 1 and not any(getattr(metadata, name, 0) for name in unwanted)


def _hidden_pointers(function: int, form: str) -> int | None:
    """Return how many pointers a kernel takes behind the arguments of this layout, None where it takes anything else."""
    offset, size = c_size_t(), c_size_t()

    def found(number: int) -> int:
        return int(driver_calls().cuFuncGetParamInfo(function, number, byref(offset), byref(size)))

    for number, letter in enumerate(form[1:]):
        wanted = struct.calcsize(letter)
        if found(number) or (offset.value, size.value) != (struct.calcsize(form[: number + 2]) - wanted, wanted):
            return None
    for hidden in range(_MOST_HIDDEN + 1):
        result = found(len(form) - 1 + hidden)
        if result:
            return hidden if result == _NO_SUCH_ARGUMENT else None
        if size.value != struct.calcsize(_POINTER):
            return None
    return None
