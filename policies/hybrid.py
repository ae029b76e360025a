"""Plain training: every row in host memory, whole batches, nothing skipped. The baseline the others must equal or beat.

Like the CPU-GPU hybrid of the DLRM scripts in where the rows live; unlike it, all tables are gathered and updated at once.
"""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy import Policy


class Hybrid(Policy):
    name = "hybrid"

    def budget_bytes(self, knobs: Knobs, all_rows_bytes: int) -> int:
        return 0


POLICY = Hybrid
