"""Comparison with the real TorchRec: configs, KeyedJaggedTensors, results and state dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbeddingBagCollection
from tests.kernels.reference.fill import fill_rows

from .jagged import draw
from .training import QUICK_WINDOWS, assert_moved

try:
    import torchrec
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
except (ImportError, OSError) as error:  # the latter: an FBGEMM of another version of torch
    why = f"TorchRec cannot be imported ({str(error).splitlines()[0]}); make bench installs one that can"
    pytest.skip(why, allow_module_level=True)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Not here: TorchRec's collection gives float32 whatever its tables are of."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


ROWS = {"word": 300, "place": 40, "hour": 24, "query": 300}


def configs(mean: bool = True) -> list[Any]:
    """TorchRec's own: tables of two dims, one of them for two features, a feature that reads two tables."""
    pooling = PoolingType.MEAN if mean else PoolingType.SUM
    return [
        EmbeddingBagConfig(name="t_text", embedding_dim=8, num_embeddings=300, feature_names=["word", "query"]),
        EmbeddingBagConfig(
            name="t_place", embedding_dim=4, num_embeddings=40, feature_names=["place"], pooling=pooling
        ),
        EmbeddingBagConfig(name="t_wide", embedding_dim=8, num_embeddings=40, feature_names=["place", "hour"]),
    ]


def theirs(weighted: bool = False) -> Any:
    torch.manual_seed(3)
    return EmbeddingBagCollection(tables=configs(not weighted), is_weighted=weighted)


def ours(weighted: bool = False, **options: Any) -> AdaptiveEmbeddingBagCollection:
    chosen = {"budget": "8KiB", "optimizer": "sgd", "lr": 0.05, "knobs": QUICK_WINDOWS, **options}
    return AdaptiveEmbeddingBagCollection(tables=configs(not weighted), is_weighted=weighted, **chosen)


def batch(seed: int, size: int = 40, weighted: bool = False) -> Any:
    """Bags of no to three ids, skewed."""
    dice = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(ROWS), size), generator=dice)
    ids = [
        (rows * torch.rand(int(own.sum()), generator=dice) ** 4).long()
        for rows, own in zip(ROWS.values(), lengths, strict=True)
    ]
    values = torch.cat(ids)
    weights = torch.rand(len(values), generator=dice) if weighted else None
    return KeyedJaggedTensor(keys=list(ROWS), values=values, lengths=lengths.reshape(-1), weights=weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_results_are_those_of_torchrec(weighted: bool) -> None:
    plain, adaptive, given = theirs(weighted), ours(weighted), batch(1, weighted=weighted)
    assert adaptive.load_state_dict(plain.state_dict()).missing_keys == []
    wanted, found = plain(given), adaptive(given)
    assert found.keys() == wanted.keys() == ["word", "query", "place@t_place", "place@t_wide", "hour"]
    assert found.length_per_key() == wanted.length_per_key()
    assert found.offset_per_key() == wanted.offset_per_key()
    torch.testing.assert_close(found.values(), wanted.values(), rtol=0, atol=1e-6)
    pooled = wanted.to_dict()
    for name, vectors in found.to_dict().items():
        torch.testing.assert_close(vectors, pooled[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-6)


def test_the_configs_of_a_collection_are_kept() -> None:
    adaptive = ours()
    assert [table.name for table in adaptive.embedding_bag_configs()] == ["t_text", "t_place", "t_wide"]
    assert adaptive.is_weighted() is theirs().is_weighted() is False


class Model(nn.Module):
    """As TorchRec's users build them: the collection somewhere inside, its vectors into a tower."""

    def __init__(self, collection: Any) -> None:
        super().__init__()
        self.sparse_arch = nn.ModuleDict({"embedding_bag_collection": collection})
        torch.manual_seed(5)
        self.over = nn.Linear(36, 1)

    def forward(self, features: Any) -> Tensor:
        pooled: Tensor = self.sparse_arch["embedding_bag_collection"](features).values()
        return self.over(pooled).squeeze(1)


def trained(model: Model, optimizers: list[torch.optim.Optimizer], steps: int, batches: Any) -> list[float]:
    losses = []
    for _, given in zip(range(steps), batches, strict=False):
        for optimizer in optimizers:
            optimizer.zero_grad()
        labels = (torch.arange(given.stride()) % 3 == 0).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(given), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        ("sgd", lambda rows: torch.optim.SGD(rows, lr=0.05)),
        ("adagrad", lambda rows: torch.optim.Adagrad(rows, lr=0.05)),
    ],
)
def test_training_equals_torchrec(rule: str, optimizer: Any) -> None:
    """The losses of 40 steps, and the tables after them in both directions."""
    plain, adaptive = Model(theirs()), Model(ours(optimizer=rule))
    adaptive.load_state_dict(plain.state_dict())
    batches = [batch(number) for number in range(40)]
    dense = [torch.optim.SGD(model.over.parameters(), lr=0.05) for model in (plain, adaptive)]
    rows = optimizer([value for name, value in plain.named_parameters() if "embedding_bags" in name])
    wanted = trained(plain, [dense[0], rows], 40, batches)
    collection: Any = adaptive.sparse_arch["embedding_bag_collection"]
    found = trained(adaptive, [dense[1]], 40, collection.runtime.prefetch(batches, sparse=lambda given: given))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=0)
    assert_moved(collection.runtime)
    assert collection.runtime.stats().looked_up_ahead_ratio > 0.9
    back = Model(theirs())
    assert [*back.state_dict()] == [*adaptive.state_dict()]
    back.load_state_dict(adaptive.state_dict())
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], value, rtol=0, atol=1e-5)


def test_a_plain_torchrec_collection_can_be_wrapped() -> None:
    """Its tables are nn.EmbeddingBags, so `wrap` replaces them and TorchRec goes on calling them."""
    import adaptive_rec

    plain, wrapped = Model(theirs()), Model(theirs())
    rows = torch.optim.SGD([v for name, v in wrapped.named_parameters() if "embedding_bags" in name], lr=0.05)
    runtime = adaptive_rec.wrap(wrapped, optimizer=rows, budget="8KiB", knobs=QUICK_WINDOWS)
    dense = [torch.optim.SGD(model.over.parameters(), lr=0.05) for model in (plain, wrapped)]
    other = torch.optim.SGD([v for name, v in plain.named_parameters() if "embedding_bags" in name], lr=0.05)
    batches = [batch(number) for number in range(20)]
    wanted = trained(plain, [dense[0], other], 20, batches)
    np.testing.assert_allclose(trained(wrapped, [dense[1], rows], 20, batches), wanted, rtol=1e-5, atol=0)
    assert_moved(runtime)


def test_results_equal_torchrec() -> None:
    assert EmbeddingBagCollection.__module__.startswith("torchrec.")
    assert torchrec.__version__


def unpooled_tables() -> list[Any]:
    return [
        torchrec.EmbeddingConfig(name="t_word", embedding_dim=8, num_embeddings=400, feature_names=["word", "query"]),
        torchrec.EmbeddingConfig(name="t_place", embedding_dim=8, num_embeddings=60, feature_names=["place"]),
    ]


@pytest.mark.parametrize("how", ["wrap", "collection"])
def test_un_pooled_collections_train_alike(how: str) -> None:
    """TorchRec's EmbeddingCollection as it is, wrapped, and ours with the same rows."""
    losses = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        model: Any = torchrec.EmbeddingCollection(tables=unpooled_tables()).double()
        runtime: Any = None
        if adaptive and how == "collection":
            rows = model.state_dict()
            model = adaptive_rec.AdaptiveEmbeddingCollection(
                unpooled_tables(), optimizer=torch.optim.Adagrad, budget="8KiB", knobs=QUICK_WINDOWS
            )
            model.load_state_dict(rows)
            runtime = model.runtime
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        if adaptive and how == "wrap":
            runtime = adaptive_rec.wrap(model, optimizer=optimizer, budget="8KiB", knobs=QUICK_WINDOWS)
        found = []
        for seed in range(30):
            drawn = draw({"word": 400, "query": 400, "place": 60}, 16, seed)
            batch = torchrec.KeyedJaggedTensor(drawn.names, drawn.ids, lengths=drawn.counts)
            optimizer.zero_grad()
            vectors = model(batch)
            loss = torch.stack([one.values().double().sin().sum() for one in vectors.values()]).sum()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    # TorchRec converts vectors to float32 on their way out
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if how == "collection" else 1e-9)
    assert_moved(runtime)


def test_raw_ids_train_as_torchrec_does_with_numbers() -> None:
    """KeyedJaggedTensors of any 64-bit ids, and TorchRec's collection given their places."""
    keys = np.random.default_rng(0).integers(-(2**63), 2**63, max(ROWS.values()), dtype=np.int64)
    plain, raw = theirs(), ours(ids="raw", seed=1)
    with torch.no_grad():
        for number, table in enumerate(configs()):
            first = torch.zeros(table.num_embeddings, table.embedding_dim)
            fill_rows(1, number, 1 / np.sqrt(len(first)), keys[: len(first)], first.numpy())
            plain.embedding_bags[table.name].weight.copy_(first)
    places = [batch(number) for number in range(30)]
    given = [KeyedJaggedTensor(list(ROWS), torch.from_numpy(keys)[one.values()], lengths=one.lengths()) for one in places]
    optimizer, losses = torch.optim.SGD(plain.parameters(), lr=0.05), []
    for number, features in enumerate(raw.runtime.prefetch(given, sparse=lambda features: features)):
        found, wanted = (one.values().sin().mean() for one in (raw(features), plain(places[number])))
        optimizer.zero_grad()
        for loss in (found, wanted):
            loss.backward()
        optimizer.step()
        losses.append((found.item(), wanted.item()))
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    assert_moved(raw.runtime)
    for table in configs():
        for some, rows in raw.embedding_bags[table.name].keys_and_rows():
            own = [keys.tolist().index(key) for key in some.tolist()]
            assert len(own) > 20
            torch.testing.assert_close(rows, plain.embedding_bags[table.name].weight[own].detach(), rtol=0, atol=1e-5)


BAGS = {"word": 9, "place": 20, "hour": 1, "query": 4}
"""Bags of each key where keys have batches of their own."""


def strided(seed: int, inverse: bool = True, weighted: bool = False) -> Any:
    """A KeyedJaggedTensor with a batch of its own for each key, of two ranks; 20 samples share the bags."""
    dice = torch.Generator().manual_seed(seed)
    counts = [torch.randint(0, 4, (bags,), generator=dice, dtype=torch.int32) for bags in BAGS.values()]
    ids = [
        (rows * torch.rand(int(own.sum()), generator=dice) ** 4).long() for rows, own in zip(ROWS.values(), counts, strict=True)
    ]
    keys = [*BAGS][::-1]
    index = torch.stack([torch.randint(BAGS[name], (20,), generator=dice) for name in keys])
    return KeyedJaggedTensor(
        keys=list(ROWS),
        values=torch.cat(ids),
        lengths=torch.cat(counts),
        weights=torch.rand(sum(map(len, ids)), generator=dice) if weighted else None,
        stride_per_key_per_rank=[[bags // 2, bags - bags // 2] for bags in BAGS.values()],
        inverse_indices=(keys, index) if inverse else None,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_its_own_for_each_key_trains_as_torchrec_does(weighted: bool) -> None:
    plain, adaptive = theirs(weighted), ours(weighted)
    adaptive.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    batches = [strided(seed, weighted=weighted) for seed in range(30)]
    for given in adaptive.runtime.prefetch(batches, sparse=lambda given: given):
        wanted, found = plain(given), adaptive(given)
        assert found.values().shape == (given.stride(), 36)
        torch.testing.assert_close(found.values(), wanted.values(), rtol=1e-5, atol=1e-6)
        optimizer.zero_grad()
        for one in (wanted, found):
            one.values().sin().sum().backward()
        optimizer.step()
    assert_moved(adaptive.runtime)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(adaptive.state_dict()[name], value, rtol=0, atol=1e-5)


def test_unequal_batches_without_indices_are_no_batch_in_torchrec_either() -> None:
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        theirs()(strided(1, inverse=False))
    with pytest.raises(ValueError, match="inverse_indices where their batches are of unequal sizes"):
        ours()(strided(1, inverse=False))


def test_indices_over_batches_of_one_size_are_followed_as_by_torchrec() -> None:
    plain, adaptive, given = theirs(), ours(), batch(1)
    adaptive.load_state_dict(plain.state_dict())
    index = torch.randint(40, (len(ROWS), 25))
    shared = KeyedJaggedTensor(list(ROWS), given.values(), lengths=given.lengths(), inverse_indices=(list(ROWS), index))
    torch.testing.assert_close(adaptive(shared).values(), plain(shared).values(), rtol=0, atol=1e-6)
    none = KeyedJaggedTensor(list(ROWS), given.values(), lengths=given.lengths(), inverse_indices=(list(ROWS), index[:, :0]))
    torch.testing.assert_close(adaptive(none).values(), plain(none).values(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("inverse", [True, False])
def test_un_pooled_vectors_of_a_batch_for_each_key_are_those_of_torchrec(inverse: bool) -> None:
    plain = torchrec.EmbeddingCollection(tables=unpooled_tables())
    adaptive = adaptive_rec.AdaptiveEmbeddingCollection(
        unpooled_tables(), optimizer=torch.optim.SGD, budget="8KiB", knobs=QUICK_WINDOWS
    )
    adaptive.load_state_dict(plain.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (plain, adaptive)]
    for seed in range(20):
        given = strided(seed, inverse)
        wanted, found = plain(given), adaptive(given)
        for optimizer in optimizers:
            optimizer.zero_grad()
        for name, one in wanted.items():
            assert torch.equal(found[name].lengths(), one.lengths())
            torch.testing.assert_close(found[name].values(), one.values(), rtol=1e-5, atol=1e-6)
        for some in (wanted, found):
            torch.stack([one.values().sin().sum() for one in some.values()]).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_moved(adaptive.runtime)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(adaptive.state_dict()[name], value, rtol=0, atol=1e-5)


def narrow(make: Any, kind: Any) -> list[Any]:
    return [
        make(name="t_a", embedding_dim=8, num_embeddings=300, feature_names=["word", "query"], data_type=kind),
        make(name="t_b", embedding_dim=8, num_embeddings=40, feature_names=["place", "hour"], data_type=kind),
    ]


def test_tables_of_16_bits_give_vectors_of_torchrecs_type() -> None:
    """TorchRec rounds a bag's sum to 16 bits before it makes it a float32; ours is not rounded."""
    given, kind = batch(1), torchrec.modules.embedding_configs.DataType.FP16
    for theirs_of, ours_of, config in (
        (EmbeddingBagCollection, AdaptiveEmbeddingBagCollection, EmbeddingBagConfig),
        (torchrec.EmbeddingCollection, adaptive_rec.AdaptiveEmbeddingCollection, torchrec.EmbeddingConfig),
    ):
        plain: Any = theirs_of(tables=narrow(config, kind))
        adaptive: Any = ours_of(tables=narrow(config, kind), budget="8KiB", optimizer="sgd", lr=0.1)
        adaptive.load_state_dict(plain.state_dict())
        wanted, found = plain(given).to_dict() if config is EmbeddingBagConfig else plain(given), adaptive(given)
        for name, one in wanted.items():
            if config is EmbeddingBagConfig:
                assert found[name].dtype == one.dtype == torch.float32
                torch.testing.assert_close(found[name], one, rtol=2**-10, atol=1e-6)
            else:
                assert found[name].values().dtype == one.values().dtype == torch.float32
                assert torch.equal(found[name].values(), one.values())


@pytest.mark.parametrize("need_indices", [False, True])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_jagged_vectors_have_the_methods_of_torchrec(need_indices: bool, integers: torch.dtype) -> None:
    plain = torchrec.EmbeddingCollection(tables=unpooled_tables(), need_indices=need_indices)
    adaptive = adaptive_rec.AdaptiveEmbeddingCollection(
        unpooled_tables(), None, need_indices, optimizer="sgd", lr=0.1, budget="8KiB"
    )
    adaptive.load_state_dict(plain.state_dict())
    for name in ("device", "need_indices", "embedding_names_by_table", "embedding_dim"):
        mine, theirs_ = getattr(adaptive, name), getattr(plain, name)
        assert (mine() if callable(mine) else mine) == (theirs_() if callable(theirs_) else theirs_), name
    drawn = draw({"word": 400, "query": 400, "place": 60}, 16, 1)
    given = torchrec.KeyedJaggedTensor(drawn.names, drawn.ids, lengths=drawn.counts.to(integers))
    methods = (
        "offsets_or_none", "lengths_or_none", "weights_or_none", "lengths", "offsets", "offsets_or_none", "values", "device",
        "to_dense_weights", "to_padded_dense_weights", "to_dense", "to_padded_dense",
    )  # fmt: skip
    wanted, found = plain(given), adaptive(given)
    for key, one in wanted.items():
        for method in methods:
            # assert_close looks at types and into lists
            mine, theirs_ = getattr(found[key], method)(), getattr(one, method)()
            if theirs_ is None or isinstance(theirs_, torch.device):
                assert mine == theirs_, method
            else:
                torch.testing.assert_close(mine, theirs_, rtol=0, atol=0, msg=method)


def test_pooled_vectors_can_be_regrouped_by_torchrec() -> None:
    plain, adaptive, given = theirs(), ours(), batch(1)
    adaptive.load_state_dict(plain.state_dict())
    groups = [["hour", "word"], ["place@t_place"], ["query", "place@t_wide"]]
    wanted = torchrec.KeyedTensor.regroup([plain(given)], groups)
    found = torchrec.KeyedTensor.regroup([adaptive(given)], groups)
    for mine, theirs_ in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs_, rtol=0, atol=1e-6)
    assert adaptive.device == plain.device
    for method in ("key_dim", "device"):
        assert getattr(adaptive(given), method)() == getattr(plain(given), method)()


def test_averages_of_weighted_rows_are_refused_by_torchrec_and_served_here() -> None:
    """`test_collection.py` compares their gradients with plain operations of torch."""
    tables, given = configs(mean=True), batch(1, weighted=True)
    plain = EmbeddingBagCollection(tables=tables, is_weighted=True)
    with pytest.raises(NotImplementedError, match="per_sample_weights"):
        plain(given)
    adaptive = AdaptiveEmbeddingBagCollection(tables=tables, is_weighted=True, optimizer="sgd", lr=0.1, budget="8KiB")
    adaptive.load_state_dict(plain.state_dict())
    own, rows = given["place"], plain.state_dict()["embedding_bags.t_place.weight"]
    bags = zip(own.to_dense(), own.to_dense_weights(), strict=True)
    wanted = [(rows[ids] * weights.unsqueeze(1)).sum(0) / max(len(ids), 1) for ids, weights in bags]
    torch.testing.assert_close(adaptive(given)["place@t_place"], torch.stack(wanted), rtol=0, atol=1e-6)


def test_of_a_key_that_is_there_twice_the_last_one_counts() -> None:
    plain, adaptive, given = theirs(), ours(), strided(1)
    adaptive.load_state_dict(plain.state_dict())
    lengths = torch.cat([given.lengths(), torch.ones(3, dtype=torch.int32)])
    twice = KeyedJaggedTensor(
        keys=[*ROWS, "hour"],
        values=torch.cat([given.values(), torch.arange(3)]),
        lengths=lengths,
        stride_per_key_per_rank=[[bags] for bags in (*BAGS.values(), 3)],
        inverse_indices=([*ROWS, "hour"], torch.tensor([[0] * 3] * 4 + [[2, 0, 1]])),
    )
    torch.testing.assert_close(adaptive(twice).values(), plain(twice).values(), rtol=0, atol=1e-6)
