"""The oracle: in every window of `reclassify_every` steps, the rows that this window looks up most are hot.

For comparison only: it reads and counts the batches to come, which no policy that places rows by the past can do. The lookups it
catches are the ceiling for a placement that changes once a window (`cdlrm` changes more often and may catch more); what a policy
lacks compared with it is the price of not knowing the future. Rows that the window does not look up stay until their slot is
needed. Exact.
"""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policies.cdlrm import CDLRM


class Oracle(CDLRM):
    name = "oracle"

    def window_batches(self, knobs: Knobs) -> int:
        return knobs.reclassify_every


POLICY = Oracle
