"""Hybrid: plain training, the baseline that the others must equal or beat. Every row is in host memory, nothing is skipped.

Rows live where the CPU-GPU hybrid of the DLRM scripts keeps them; unlike there, all tables are gathered and updated at once.
"""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy import Policy


class Hybrid(Policy):
    name = "hybrid"

    def budget_bytes(self, knobs: Knobs, all_rows_bytes: int) -> int:
        return 0


POLICY = Hybrid
