"""Hot budgets as people write them: bytes, or a share of what all rows would take."""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_rec.errors import UsageError
from adaptive_rec.units import parse_size

SHARES = ("1%", "3%", "10%", "30%")
"""What is tried where nothing is asked for, beside the configured budget."""


def parse_budgets(texts: Sequence[str], everything_bytes: int) -> list[int]:
    """Budgets in bytes, rising, each once. A share is one of `everything_bytes`. Raises UsageError for what is neither."""
    return sorted({_parse(text.strip(), everything_bytes) for text in texts})


def _parse(text: str, everything_bytes: int) -> int:
    try:
        if text.endswith("%"):
            share = float(text.removesuffix("%")) / 100
            if not 0 < share <= 1:
                raise ValueError
            return max(1, int(share * everything_bytes))
        return parse_size(text)
    except ValueError:
        raise UsageError(
            f"--budgets takes bytes (512KiB, 16MiB) or shares of all rows (10%), from above 0 to 100%, got {text!r}"
        ) from None
