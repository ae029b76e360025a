"""JSON with limits, so that a damaged or hostile file cannot take more than some tens of megabytes of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from adaptive_rec.checkpoint.files import SMALL_FILE_BYTES
from adaptive_rec.errors import CheckpointError


class JsonLimits(NamedTuple):
    """Limits of a JSON text; its depth has Python's own limit."""

    size_bytes: int
    brackets: int
    commas: int


VALUES = JsonLimits(SMALL_FILE_BYTES, brackets=100_000, commas=1_000_000)


def render_json(value: Any, path: Path, limits: JsonLimits = VALUES) -> bytes:
    """Return a value as JSON; floats keep every bit. Raises CheckpointError where `read_json` would."""
    try:
        data = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} must hold numbers, texts, lists and objects: {error}") from None
    check_limits(data, path, limits)
    return data


def parse_limited_json(data: bytes, path: Path, limits: JsonLimits = VALUES) -> Any:
    """Read a JSON text. Raises CheckpointError where it is not JSON, too large or too deep."""
    check_limits(data, path, limits)
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} must hold JSON: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def check_limits(data: bytes, path: Path, limits: JsonLimits) -> None:
    """Raise CheckpointError for a text beyond the limits. Brackets count, as objects and lists take up to 60 times their text."""
    brackets, commas = data.count(b"{") + data.count(b"["), data.count(b",")
    for what, found, most in (
        ("bytes", len(data), limits.size_bytes),
        ("opening brackets", brackets, limits.brackets),
        ("commas", commas, limits.commas),
    ):
        if found > most:
            raise CheckpointError(f"{path} must have {most} {what} or fewer, got {found}")
