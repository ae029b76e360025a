"""What the dense part reads of a micro-batch: the store fills it, the dense part runs it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """S lines: the micro-batch's samples, then padding. A padding line is zero in everything, its pooled vectors included."""

    dense_SX: Tensor
    pooled: list[Tensor]
    """Pooled vectors (S, T, D) for each pool. They take no part in autograd until they are run."""
    labels_S: Tensor
    scale_S: Tensor
    """Weight of a line's loss: the sample's weight (more than 0) over the batch size; 0 says that a line is padding."""
    samples: int
    """Lines that are no padding."""

    def first(self, lines: int) -> MicroBatch:
        """The first lines of its memory, none of them padding."""
        pooled = [part[:lines] for part in self.pooled]
        return MicroBatch(self.dense_SX[:lines], pooled, self.labels_S[:lines], self.scale_S[:lines], lines)
