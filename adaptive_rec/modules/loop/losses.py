"""Losses that a user's loop records."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import UsageError


class LoopLosses:
    """Sums the mean losses of steps, each times its samples. A step without a loss counts with the last one."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store
        self._loss: Tensor | None = None
        self._sum = torch.zeros((), dtype=torch.float64, device=store.torch_device)
        self._samples = 0
        """Samples of the newest step."""

    def record(self, loss: Tensor | float) -> None:
        """Take the mean loss of the present step: the next one that counts or, if it is the first loss, the last one too."""
        given = torch.as_tensor(loss).detach()
        if given.numel() != 1:
            raise UsageError(
                f"loss must be one number, the mean over the step's samples, got shape {tuple(given.shape)}"
            )
        known, self._loss = self._loss is not None, given.reshape(()).to(self._sum)
        if not known:  # the first loss may come after its step
            self._sum += self._loss * self._samples

    def count_step(self, samples: int) -> None:
        """Count a step of so many samples."""
        self._samples = samples
        if self._loss is not None:
            self._sum += self._loss * samples

    def fetch(self) -> Fetched:
        """Fetch the sum of all samples so far; not a number where no loss was recorded."""
        return Fetched(np.array(np.nan)) if self._loss is None else self._store.hot.fetch_later(self._sum)
