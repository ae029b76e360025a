"""Matrix products in TF32: factors rounded to 10 bits of fraction, sums in float32. Only CUDA devices have it."""

from __future__ import annotations

import torch

from adaptive_rec.errors import ConfigError


def use_tf32(wanted: bool, on_device: bool) -> None:
    """Set it for the process, since backward passes and recordings read it on other threads. Raises ConfigError on a CPU."""
    if wanted and not on_device:
        raise ConfigError("run.precision must not be tf32 on a CPU, which has no TF32, got tf32; take float32 or bf16")
    torch.backends.cuda.matmul.allow_tf32 = wanted
