"""This intrinsic lets a kernel read memory by its address: arrays of which there is another number each time."""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer_to(typing_context, address):
    """Return a pointer for `numba.carray`, which is valid as long as the array whose address it was."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate
