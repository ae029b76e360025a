"""TorchRec's own DLRM over its own tables: what one trains who takes TorchRec as it comes.

The other rivals here have our dense part, which is quicker than theirs, so that tables are compared with tables.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from adaptive_rec.config.tree import Config
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import RowSpace
from benchmarks.common.rivals import TorchRec
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import Turn
from benchmarks.cpu.contestants import OfRival, dense_part, first_rows

NAMES = {"TorchRec's DLRM": False, "TorchRec's DLRM compiled": True}
"""By its names: whether its dense modules run through torch.compile, as ours do where run.compile is set."""


class TorchRecDlrm(OfRival):
    """`torchrec.models.dlrm.DLRM`, `FusedEmbeddingBagCollection`, BCEWithLogitsLoss and the optimizer of torch.optim as it
    is made by default, from the weights that ours begins with."""

    def __init__(self, config: Config, source: Preloaded, store: EmbeddingStore, compiled: bool) -> None:
        from torchrec.models.dlrm import DLRM

        space = RowSpace.of(source.tables, source.features)
        tables = TorchRec(config, space, partial(first_rows, store))
        super().__init__(tables, source)
        ours = dense_part(config, source)
        bottom, top = (_layers(part) for part in (ours.model.bottom, ours.model.top))
        self._model = DLRM(
            tables.collection, bottom[0].in_features, [one.out_features for one in bottom],
            [one.out_features for one in top],
        )  # fmt: skip
        _copy_weights(ours, self._model, vectors=len(space.features) + 1)
        dense = [*self._model.dense_arch.parameters(), *self._model.over_arch.parameters()]
        options = config.optimizer
        optimizer = getattr(torch.optim, options.dense)
        self._optimizer = optimizer(dense, lr=options.dense_lr, **options.dense_options)
        if compiled:
            for name in ("dense_arch", "inter_arch", "over_arch"):
                setattr(self._model, name, torch.compile(getattr(self._model, name)))
        self.about = (
            f"torchrec.models.dlrm.DLRM, {'compiled' if compiled else 'eager'}, torch.optim.{type(self._optimizer).__name__}; "
            "all but the dense step stands under dense"
        )
        self._loss, self._loss_sum = nn.BCEWithLogitsLoss(), torch.zeros(())
        self._bf16 = config.run.precision == "bf16"

    def step(self, turn: Turn, batch: Any) -> None:
        dense_BX, labels_B, _, jagged = batch
        with turn.stage("dense"):  # and rows read and updated: its module does all
            self._optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
                logits_B = self._model(dense_BX, jagged).squeeze(-1)
            loss = self._loss(logits_B.float(), labels_B)
            loss.backward()
        with turn.stage("dense step"):
            self._optimizer.step()
        self._loss_sum += loss.detach()

    def mean_loss(self) -> float:
        return float(self._loss_sum) / self.steps


def _layers(module: Any) -> list[nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


def _copy_weights(ours: DensePart, theirs: Any, vectors: int) -> None:
    """Theirs begins as ours does. Ours takes the products of pairs (i, j) with j < i row by row, theirs those with i < j."""
    pairs = (
        (_layers(ours.model.bottom), _layers(theirs.dense_arch)),
        (_layers(ours.model.top), _layers(theirs.over_arch)),
    )
    for mine, others in pairs:
        for a, b in zip(mine, others, strict=True):
            b.load_state_dict(a.state_dict())
    high, low = torch.tril_indices(vectors, vectors, offset=-1)
    place = torch.zeros((vectors, vectors), dtype=torch.int64)
    place[low, high] = torch.arange(len(low))
    first, second = torch.triu_indices(vectors, vectors, offset=1)
    weight = _layers(theirs.over_arch)[0].weight
    dim = weight.shape[1] - len(low)
    with torch.no_grad():
        weight[:, dim:] = weight[:, dim:][:, place[first, second]].clone()
