"""Training loops as users write them, around one and the same model: torch's bags, ours in their place, a collection.

The dense part is that of `adaptive-rec train`: its layers, its weights at the beginning and its optimizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace
from benchmarks.common.rivals import TorchRec, Weights, by_feature, sparse_optimizer
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import Turn
from benchmarks.cpu.contestants import dense_part
from examples.jagged import KeyedJaggedTensor  # type: ignore[attr-defined]

Item = tuple[Tensor, Any, Tensor]
"""Dense features, what the embeddings are called with, labels."""


class Net(nn.Module):
    """DLRM: embeddings of whatever make between the layers of `adaptive-rec train`'s."""

    def __init__(self, dense: Any, embed: nn.Module) -> None:
        super().__init__()
        self.bottom, self.interaction, self.top, self.embed = dense.bottom, dense.interaction, dense.top, embed

    def forward(self, dense_BX: Tensor, lookups: Any) -> Tensor:
        logits_B: Tensor = self.top(self.interaction(self.bottom(dense_BX), self.embed(lookups))).squeeze(1)
        return logits_B


class Bags(nn.Module):
    """A bag for each feature, called one after the other."""

    emb_l: Any

    def __init__(self, weights: Weights, tables: int) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(torch.tensor(weights(table)), freeze=False, mode="sum", sparse=True)
            for table in range(tables)
        )

    def forward(self, bags: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [emb(ids, offsets).unsqueeze(1) for emb, (ids, offsets) in zip(self.emb_l, bags, strict=True)]


class Collected(nn.Module):
    """A collection over a KeyedJaggedTensor, all features of one dim."""

    def __init__(self, ebc: nn.Module, features: int) -> None:
        super().__init__()
        self.ebc, self.features = ebc, features

    def forward(self, features: Any) -> list[Tensor]:
        return [self.ebc(features).values().unflatten(1, (self.features, -1))]


def bag_items(source: Preloaded) -> list[Item]:
    """Batches as the DLRM reference has them: ids of each feature and where its bags begin."""
    items = []
    for batch in source.batches:
        found = by_feature(batch, len(source.features), pin=False)
        bags = [(ids, ends[:-1]) for ids, ends in zip(found.ids_F, found.offsets_F, strict=True)]
        items.append((found.dense_BX, bags, found.labels_B))
    return items


def jagged_items(source: Preloaded) -> list[Item]:
    """Batches as TorchRec has them."""
    items, names = [], [feature.name for feature in source.features]
    for batch in source.batches:
        found = by_feature(batch, len(names), pin=False)
        lengths = torch.cat([ends.diff() for ends in found.offsets_F]).int()
        kjt = KeyedJaggedTensor(names, torch.cat(found.ids_F), lengths=lengths)
        items.append((found.dense_BX, kjt, found.labels_B))
    return items


class UserLoop:
    """zero_grad, forward, backward, step: an ordinary loop. Its clock runs over all of it."""

    row_wise = True

    def __init__(
        self, about: str, net: Net, dense: torch.optim.Optimizer, items: list[Item], rows: Callable[[int], Tensor]
    ) -> None:
        self.about, self.steps = about, 0
        self.net, self.dense, self.items = net, dense, items
        self.optimizers = [dense]
        self.runtime: Any = None
        self.foretell: Callable[[Item], Any] | None = None
        """For a loop whose lookups are told ahead."""
        self._rows, self._loss, self._loss_sum = rows, nn.BCEWithLogitsLoss(), 0.0

    def turn(self, steps: int) -> Turn:
        turn, losses = Turn(), []
        first = self.steps % len(self.items)
        items: Iterable[Item] = [self.items[(first + number) % len(self.items)] for number in range(steps)]
        with turn.stage("dense"):
            for dense_BX, lookups, labels_B in self._ahead(items):
                for optimizer in self.optimizers:
                    optimizer.zero_grad(set_to_none=True)
                loss = self._loss(self.net(dense_BX, lookups), labels_B)
                loss.backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                losses.append(loss.detach())
        self.steps += steps
        self._loss_sum += float(sum(losses))
        return turn

    def _ahead(self, items: Iterable[Item]) -> Iterable[Item]:
        return items if self.foretell is None else self.runtime.prefetch(items, sparse=self.foretell)

    def mean_loss(self) -> float:
        return self._loss_sum / self.steps

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._rows(table)[torch.from_numpy(ids)].numpy()
        return found

    def facts(self) -> dict[str, Any]:
        if self.runtime is None:
            return {"about": self.about}
        stats = self.runtime.stats()
        return {
            "about": self.about,
            "hot rows": stats.hot_rows,
            "hot lookups": stats.hot_lookup_ratio,
            "looked up ahead": stats.looked_up_ahead_ratio,
        }

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close()


def told_ahead(loop: UserLoop, foretell: Callable[[Item], Any], about: str) -> UserLoop:
    """Return the same loop, but that its lookups are told ahead. Both train the same model, in turns of their own."""
    other = copy(loop)
    other.foretell, other.about = foretell, about
    return other


def foretell_bags(item: Item) -> dict[str, Any]:
    return {f"embed.emb_l.{number}": bag for number, bag in enumerate(item[1])}


def plain_loop(config: Config, source: Preloaded, weights: Weights, items: list[Item]) -> UserLoop:
    """`nn.EmbeddingBag(sparse=True)` and torch's own sparse optimizer."""
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    dense, bags = dense_part(config, source), Bags(weights, len(source.tables))
    loop = UserLoop("", Net(dense.model, bags), dense.optimizer, items, lambda table: bags.emb_l[table].weight.detach())
    optimizer, rule = sparse_optimizer(config, [bag.weight for bag in bags.emb_l])
    loop.optimizers.append(optimizer)
    loop.about = f"nn.EmbeddingBag(sparse=True) for each table, torch's {rule}"
    return loop


def wrapped_loop(config: Config, source: Preloaded, weights: Weights, items: list[Item], budget: int) -> UserLoop:
    """The same script with `wrap`, over torch's optimizer where there is one of the rule."""
    loop = plain_loop(config, source, weights, items)
    options = rule_options(config)
    if options["optimizer"] == "rowwise_adagrad":
        loop.optimizers.pop()
    else:
        options = {"optimizer": loop.optimizers[1]}
    loop.runtime = adaptive_rec.wrap(
        loop.net, budget=budget, policy=config.knobs.policy, knobs=knobs_of(budget), **options
    )
    loop.about = f"adaptive_rec.wrap, policy {config.knobs.policy}, optimizer {config.optimizer.embedding}"
    return loop


def collection_loop(config: Config, source: Preloaded, weights: Weights, items: list[Item], budget: int) -> UserLoop:
    """AdaptiveEmbeddingBagCollection over a KeyedJaggedTensor, told ahead."""
    dense, tables = dense_part(config, source), iter(range(len(source.tables)))

    def begin(rows: Tensor) -> Tensor:
        return rows.copy_(torch.from_numpy(weights(next(tables))))

    ebc = adaptive_rec.AdaptiveEmbeddingBagCollection(
        tables=[
            adaptive_rec.EmbeddingBagConfig(f"t{number}", table.dim, table.rows, [feature.name], init_fn=begin)
            for number, (table, feature) in enumerate(zip(source.tables, source.features, strict=True))
        ],
        budget=budget, policy=config.knobs.policy, knobs=knobs_of(budget), **rule_options(config),
    )  # fmt: skip
    net = Net(dense.model, Collected(ebc, len(source.features)))
    loop = UserLoop("AdaptiveEmbeddingBagCollection, runtime.prefetch", net, dense.optimizer, items, table_of(ebc))
    loop.runtime, loop.foretell = ebc.runtime, lambda item: item[1]
    return loop


def torchrec_loop(config: Config, source: Preloaded, weights: Weights, items: list[Item]) -> UserLoop:
    """TorchRec's fused collection in the same script as ours. Its backward pass updates its rows."""
    dense, tables = dense_part(config, source), TorchRec(config, RowSpace.of(source.tables, source.features), weights)
    net = Net(dense.model, Collected(tables.collection, len(source.features)))
    return UserLoop(tables.about, net, dense.optimizer, items, tables.weight)


def table_of(ebc: nn.Module) -> Callable[[int], Tensor]:
    return lambda table: ebc.state_dict()[f"embedding_bags.t{table}.weight"]


def rule_options(config: Config) -> dict[str, Any]:
    """Those of `adaptive-rec train`'s rows."""
    options = config.optimizer
    eps = {} if options.embedding == "sgd" else {"eps": options.eps}
    return {"optimizer": options.embedding, "lr": options.embedding_lr, **eps}


def knobs_of(budget: int) -> dict[str, Any]:
    """One reclassification may fill the budget, as in the runs of `adaptive-rec train` here."""
    return {"max_moved_bytes": max(64 << 20, budget)}
