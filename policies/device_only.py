"""Device only: every row is on the device, whatever the hot budget. The ceiling for any placement, where the tables fit."""

from __future__ import annotations

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy import AccessView, Policy, Wish


class DeviceOnly(Policy):
    name = "device_only"

    def budget_bytes(self, knobs: Knobs, all_rows_bytes: int) -> int:
        return all_rows_bytes

    def place(self, view: AccessView) -> Wish:
        rows = np.arange(view.all_rows.start, view.all_rows.stop, dtype=np.int64)
        return Wish(rows, np.ones(len(rows)))


POLICY = DeviceOnly
