"""AdaptiveEmbeddingCollection equals an nn.Embedding for each table; its input is a stand-in for KeyedJaggedTensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptive_rec import AdaptiveEmbeddingCollection, EmbeddingBagConfig
from adaptive_rec.errors import AdaptiveRecError

from .jagged import Jagged, LengthsOnly, OffsetsOnly, draw
from .training import QUICK_WINDOWS, assert_moved

FEATURES = {"word": 400, "place": 60, "query": 400, "hour": 24}
OPTIMIZERS: dict[str, Any] = {
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, lr=0.01),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
}


def configs() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig("t_text", 8, 400, ["word", "query"]),
        EmbeddingBagConfig("t_place", 8, 60, ["place"]),
        EmbeddingBagConfig("t_hour", 8, 60, ["hour", "place"]),
    ]


def collection(optimizer: Any = torch.optim.Adagrad, **options: Any) -> AdaptiveEmbeddingCollection:
    given = {"budget": "8KiB", "optimizer": optimizer, "knobs": QUICK_WINDOWS, **options}
    return AdaptiveEmbeddingCollection(configs(), **given)


def plain_of(ours: AdaptiveEmbeddingCollection, sparse: bool) -> nn.ModuleDict:
    tables = {
        table.name: nn.Embedding(table.num_embeddings, table.embedding_dim, sparse=sparse)
        for table in ours.embedding_configs()
    }
    plain = nn.ModuleDict(tables)
    nn.ModuleDict({"embeddings": plain}).load_state_dict(ours.state_dict())
    return plain


def read(plain: nn.ModuleDict, jagged: Jagged) -> dict[str, Tensor]:
    which = {"word": "t_text", "query": "t_text", "place@t_place": "t_place", "hour": "t_hour", "place@t_hour": "t_hour"}
    return {name: plain[table](jagged.of(name.partition("@")[0])[0]) for name, table in which.items()}


def loss_of(found: dict[str, Tensor]) -> Tensor:
    return torch.stack([(vectors + number).sin().sum() for number, vectors in enumerate(found.values())]).sum()


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "in line"])
def test_it_trains_as_an_embedding_for_each_table(rule: str, prefetch: bool) -> None:
    make = OPTIMIZERS[rule]
    ours = collection(type(make([torch.zeros(1)])))
    plain = plain_of(ours, sparse=rule == "SparseAdam")
    optimizers = [make(one.parameters()) for one in (ours, plain)]
    batches: Any = [draw(FEATURES, 24, seed) for seed in range(40)]
    for batch in ours.runtime.prefetch(batches, sparse=lambda one: one) if prefetch else batches:
        found = {name: one.values() for name, one in ours(batch).items()}
        losses = [loss_of(found), loss_of(read(plain, batch))]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-11)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[f"embeddings.{name}"], value, rtol=0, atol=1e-11)
    assert_moved(ours.runtime)
    assert ours.runtime.stats().looked_up_ahead_ratio == (1.0 if prefetch else 0.0)


@pytest.mark.parametrize("kind", [lambda one: one, LengthsOnly, OffsetsOnly])
def test_vectors_come_with_the_lengths_of_their_samples(kind: Any) -> None:
    ours, batch = collection(), draw(FEATURES, 6, seed=3)
    found = ours(kind(batch))
    assert list(found) == ["word", "query", "place@t_place", "hour", "place@t_hour"]
    for name, one in found.items():
        ids, first, _ = batch.of(name.partition("@")[0])
        lengths = torch.diff(torch.cat([first, torch.tensor([len(ids)])]))
        assert torch.equal(one.lengths(), lengths)
        assert torch.equal(one.offsets(), torch.cat([first, torch.tensor([len(ids)])]))
        parts = one.to_dense()
        assert [len(part) for part in parts] == lengths.tolist()
        for length in (None, 1, 5):
            padded = one.to_padded_dense(length, padding_value=-1.0)
            assert padded.shape == (6, int(lengths.max()) if length is None else length, 8)
            for sample, part in zip(padded, parts, strict=True):
                kept = min(len(part), len(sample))
                assert torch.equal(sample[:kept], part[:kept])
                assert (sample[kept:] == -1.0).all()
    found["word"].to_padded_dense(4).sum().backward()
    assert ours.embeddings["t_text"].weight.grad is not None


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_lengths_and_offsets_are_of_one_type(integers: torch.dtype) -> None:
    """As in TorchRec, which keeps offsets once they were asked for."""
    drawn = draw(FEATURES, 6, seed=3)
    found = collection()(Jagged(drawn.names, drawn.ids, drawn.counts.to(integers)))["place@t_hour"]
    assert found.offsets_or_none() is None
    assert found.offsets().dtype == found.lengths().dtype == integers
    assert found.offsets_or_none() is found.offsets()
    assert found.lengths_or_none() is found.lengths()
    assert found.device() == torch.device("cpu")


def test_vectors_come_with_their_ids_if_these_are_needed() -> None:
    batch = draw(FEATURES, 6, seed=3)
    for options in ({}, {"ids": "raw", "optimizer": "adagrad", "lr": 0.1}):
        needed = collection(need_indices=True, **options)
        assert needed.need_indices() is True
        for name, one in needed(batch).items():
            ids, _, _ = batch.of(name.partition("@")[0])
            assert torch.equal(one.weights(), ids)
            assert one.weights_or_none() is one.weights()
            parts = one.to_dense_weights()
            assert torch.equal(torch.cat(parts), ids)
            padded = one.to_padded_dense_weights(4, padding_value=-1)
            assert padded.shape == (6, 4)
            for sample, part in zip(padded, parts, strict=True):
                assert sample.tolist() == [*part.tolist(), *[-1] * (4 - len(part))]
    one = collection()(batch)["word"]
    assert one.weights_or_none() is one.to_dense_weights() is one.to_padded_dense_weights() is None
    with pytest.raises(ValueError, match="need_indices=True"):
        one.weights()


def test_its_interface_is_that_of_torchrec() -> None:
    ours = collection()
    assert ours.device == torch.device("cpu")
    assert ours.need_indices() is False
    assert ours.embedding_names_by_table() == [["word", "query"], ["place@t_place"], ["hour", "place@t_hour"]]
    assert [table.name for table in ours.embedding_configs()] == ["t_text", "t_place", "t_hour"]
    assert ours.embedding_dim() == 8
    assert list(ours.state_dict()) == [f"embeddings.{name}.weight" for name in ("t_text", "t_place", "t_hour")]
    assert isinstance(ours.embeddings["t_text"], nn.Embedding)
    with pytest.raises(TypeError, match="state_dict"):
        ours.__reduce_ex__(4)


def test_invalid_tables_and_inputs_are_refused() -> None:
    with pytest.raises(AdaptiveRecError, match="embedding_dim of all tables must be the same"):
        AdaptiveEmbeddingCollection(
            [configs()[0], EmbeddingBagConfig("other", 4, 9, ["x"])], optimizer="sgd", lr=0.1, budget="1KiB"
        )
    with pytest.raises(AdaptiveRecError, match="t_text"):
        AdaptiveEmbeddingCollection([configs()[0], configs()[0]], optimizer="sgd", lr=0.1)
    ours = collection()
    with pytest.raises(ValueError, match="hour"):
        ours(draw({name: rows for name, rows in FEATURES.items() if name != "hour"}, 4, seed=1))
    with pytest.raises(ValueError, match="lengths"):
        ours(Jagged(list(FEATURES), torch.zeros(3, dtype=torch.int64), torch.ones(8, dtype=torch.int64)))
    with pytest.raises(AdaptiveRecError, match="t_hour"):
        ours(draw({**FEATURES, "hour": 4000}, 40, seed=1))
    with pytest.raises(TypeError, match="KeyedJaggedTensor"):
        ours(torch.zeros(3))
