"""The oracle: in every window of `reclassify_every` steps those rows are hot that the window itself will look up most.

For comparison only: it has read the batches to come and counted them, which no policy that places rows by the past can
do. What it catches is the ceiling for a placement that changes once a window (but see `cdlrm`: more often is more), and
what is missing to it is the price of not knowing the future. Rows that the window does not look up stay where nobody
needs their slot. Exact.
"""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policies.cdlrm import CDLRM


class Oracle(CDLRM):
    name = "oracle"

    def window_batches(self, knobs: Knobs) -> int:
        return knobs.reclassify_every


POLICY = Oracle
