"""Plain steps are plain PyTorch: `hybrid` equals a DLRM of nn.EmbeddingBag and torch's own sparse optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from adaptive_rec.runtime.assemble import assemble
from tests.matrix import always, each, grid
from tests.plain_lion import PlainLion

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, eps=1e-8),
    "lazy_adam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.05, eps=1e-8),
    "lion": lambda parameters: PlainLion(parameters, lr=0.05),
}


@grid(always, each, optimizer=list(OPTIMIZERS), bags=["one-hot", "mean"])
def test_hybrid_equals_plain_pytorch(train: Any, optimizer: str, bags: str) -> None:
    steps = 24
    ours = train(optimizer=optimizer, bags=bags, steps=steps)
    space, source = ours.runtime.store.space, ours.runtime.source
    fresh = assemble(ours.runtime.config, source)
    embeddings = [
        nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(fresh.store.contents.export(feature.table)[0]), freeze=False, mode=feature.pooling, sparse=True,
            include_last_offset=True,
        )
        for feature in space.features
    ]  # fmt: skip
    sparse = OPTIMIZERS[optimizer]([bag.weight for bag in embeddings])
    model, dense = fresh.dense.model, fresh.dense.optimizer
    losses = []
    for batch in source.batches:
        pooled = [_pool(embeddings, batch, pool.features, len(space.features)) for pool in space.pools]
        logits = model(torch.from_numpy(batch.dense_BX).double(), pooled)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels_B).double())
        dense.zero_grad()
        sparse.zero_grad()
        loss.backward()
        dense.step()
        sparse.step()
        losses.append(loss.item())

    np.testing.assert_allclose(ours.losses, losses, rtol=1e-12)
    for table, bag in zip(ours.tables, embeddings, strict=True):
        np.testing.assert_allclose(table, bag.weight.detach().numpy(), rtol=0, atol=1e-11)


def _pool(embeddings: list[nn.EmbeddingBag], batch: Any, features: Any, total: int) -> torch.Tensor:
    lengths = np.diff(batch.offsets).reshape(batch.size, total)
    starts = batch.offsets[:-1].reshape(batch.size, total)
    columns = []
    for f in features:
        ids = np.concatenate([batch.ids_N[s : s + n] for s, n in zip(starts[:, f], lengths[:, f], strict=True)])
        offsets = np.concatenate([[0], np.cumsum(lengths[:, f])])
        columns.append(embeddings[f](torch.from_numpy(ids), torch.from_numpy(offsets)))
    return torch.stack(columns, dim=1)
