"""Matrix products in TF32: factors rounded to 10 bits of fraction, sums in float32. Only CUDA devices have it."""

from __future__ import annotations

import torch


def use_tf32(wanted: bool) -> None:
    """Set it for the process, since backward passes and recordings read it on other threads."""
    torch.backends.cuda.matmul.allow_tf32 = wanted
