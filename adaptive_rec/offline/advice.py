"""The words of `profile`, `plan` and `simulate` about a hot budget: all three name the same one for the same data."""

from __future__ import annotations

from collections.abc import Iterator

from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.staged.device_hot import HEADROOM_BYTES
from adaptive_rec.runtime.assemble import choose_device
from adaptive_rec.system.host_memory import available_bytes
from adaptive_rec.units import exact_size, size

RULE = "the smallest that holds 99 % of the lookups that can be hot (a row's first one cannot)"


def room_bytes(config: Config) -> int:
    """Return the memory of this machine that hot rows could take: the GPU's but for what it keeps free, or free host memory."""
    if choose_device(config).type != "cuda":
        return available_bytes()
    import torch

    return max(0, torch.cuda.mem_get_info()[0] - HEADROOM_BYTES)


def advice(suggested_bytes: int | None, all_rows_bytes: int, everything_fits: bool) -> Iterator[tuple[str, str]]:
    """Yield the suggested budget, its rule, and whether a hot tier is needed at all."""
    if suggested_bytes is not None:
        yield "suggested", f"--set knobs.hot_budget_bytes={exact_size(suggested_bytes)}"
        yield "rule", RULE
    fits = ": everything fits, no hot tier is needed (policy device_only)" if everything_fits else ""
    yield "in all", f"{size(all_rows_bytes)} for all rows, optimizer state included{fits}"


def movement_note(policies: str, row_bytes: float, plain_bytes: float) -> str:
    """Return how many more bytes a hot row takes under policies that record movement; empty under others."""
    if row_bytes <= plain_bytes:
        return ""
    return (
        f"{policies}: a hot row takes {row_bytes:.0f} bytes instead of {plain_bytes:.0f}, as its movement is recorded; "
        f"a budget holds {1 - plain_bytes / row_bytes:.0%} fewer rows than under hotline"
    )
