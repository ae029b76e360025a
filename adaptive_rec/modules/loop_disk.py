"""The store of a user's loop whose tables are larger than memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.disk.scratch import ScratchFolder
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.runtime.assemble import build_store
from adaptive_rec.system.durable import make_folders


def build_on_disk(config: Config, space: RowSpace, policy: Policy, rules: Sequence[RowRule], disk: Path) -> EmbeddingStore:
    """Build a store whose cold rows lie in a new folder within `disk`, which is removed with the store: what a loop saves has the
    rows themselves. Raises ConfigError."""
    try:
        make_folders(disk)
        folder = ScratchFolder(disk, "rows-")
    except OSError as error:
        raise ConfigError(f"disk must be a folder that can be written to, {disk} is not: {error.strerror}") from None
    with folder:
        store = build_store(config, space, policy, None, rule=rules, rows=folder.path)
        folder.keep_for(store)
    return store
