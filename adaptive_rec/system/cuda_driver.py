"""Whether there can be a CUDA device, asked without torch, which takes seconds to load."""

from __future__ import annotations

import ctypes
import os
from importlib import metadata

NO_CUDA = "run.device cuda needs a CUDA device that torch can use, found none; use cpu or auto"


def may_have_cuda() -> bool:
    """Whether torch might find a device: it is no build for CPUs alone, there is a driver, and devices are not hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    try:
        build = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return True
    if build.endswith("+cpu") or "+rocm" in build:
        return "+rocm" in build
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
