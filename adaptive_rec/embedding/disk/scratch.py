"""A folder for the rows of a store that no checkpoint names."""

from __future__ import annotations

import weakref
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from adaptive_rec.embedding.store import EmbeddingStore


class ScratchFolder:
    """A new folder that is removed with the store that gets it, or at the end of a ``with`` block in which no store does."""

    def __init__(self, within: Path, prefix: str) -> None:
        """`within` must exist. Raises OSError."""
        self._folder = TemporaryDirectory(prefix=prefix, dir=within)
        self._is_kept = False
        self.path = Path(self._folder.name)

    def keep_for(self, store: EmbeddingStore) -> None:
        """Let the folder go with a store."""
        weakref.finalize(store, self._folder.cleanup)
        self._is_kept = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            self._folder.cleanup()
