"""What a contestant is to be: its tables, its data, its memory. Loads nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from benchmarks.common.command import ROOT

OUT = ROOT / "studies" / "bench" / "disk_tier"

IN_MEMORY, OURS = "all in memory", "ours"
BAGS, ARRAYS, ROCKS = "nn.EmbeddingBag over a map", "NumPy over a map", "RocksDB"
ADVISED = ", MADV_RANDOM"
"""What the name of a rival ends with that has told the system to read no neighbours of the pages in use."""

PLAIN_MAPS = (BAGS, ARRAYS)
RIVALS = (*PLAIN_MAPS, BAGS + ADVISED, ARRAYS + ADVISED, ROCKS)

PLAIN_ZIPF = "data.synthetic.popular_ratio=0"
ALL_COUNTED = "knobs.sample_ratio=1"
"""All lookups are counted, so that rows find their places in fewer steps."""


@dataclass(frozen=True)
class Setup:
    """A contestant."""

    name: str
    """IN_MEMORY, a name of RIVALS, or any other one for a run of ours with rows on a disk."""
    shape: str
    data: str
    """Folder of prepared samples or a Criteo file; empty for synthetic samples."""
    batch_size: int
    rows_ratio: float
    """Part of all rows, with their optimizer state, that has room in memory."""
    settings: tuple[str, ...]
    folder: str
    """Where its rows lie on the disk."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Setup:
        values = json.loads(text)
        return Setup(**{**values, "settings": tuple(values["settings"])})
