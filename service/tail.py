"""Reading a file of JSON lines while another process writes it: each line once, torn ones never."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tail:
    """Remembers how far a growing file has been read. The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Every line that was finished since the last call. Lines a crash has torn are left out."""
        try:
            if self.path.stat().st_size == self._position:
                return
            file = open(self.path, "rb")
        except OSError:
            return
        with file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._position += len(line)
                value = _object(line)
                if value is not None:
                    yield value


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
