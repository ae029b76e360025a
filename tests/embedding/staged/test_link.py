"""Bytes that a link between devices counts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.embedding.staged.link import Link
from adaptive_rec.system.group_meter import GroupMeter


class NoLink(Link):
    """Sends nothing, and remembers what it was asked for."""

    def _exchange(self, lines: Tensor, found: Tensor, sent_W: list[int], received_W: list[int]) -> None:
        self.asked = sent_W, received_W

    def _add(self, tensor: Tensor) -> None: ...


def test_a_rank_counts_the_bytes_that_it_sends_to_others() -> None:
    meter = GroupMeter()
    link = NoLink(1, 3, meter)
    for _ in range(2):
        found = link.exchange("rows", torch.zeros(9, 4), np.array([2, 4, 3]), np.array([1, 4, 0]))
    assert found.shape == (5, 4)
    assert link.asked == ([2, 4, 3], [1, 4, 0])
    assert meter.sent_bytes["rows"] == 2 * (2 + 3) * 4 * 4
    link.add("dense", torch.zeros(6))
    assert meter.sent_bytes["dense"] == 2 * 2 * 24 // 3, "2 (W - 1) / W of the tensor, as in a ring"
