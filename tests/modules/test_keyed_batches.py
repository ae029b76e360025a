"""KeyedJaggedTensors with a batch of its own for each key.

Values are those of TorchRec 1.8 (``EmbeddingBagCollection.forward``: the bags of each key, picked by ``inverse_indices``),
computed here with modules of torch 2.13. `test_torchrec.py` compares with TorchRec itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptive_rec import AdaptiveEmbeddingBagCollection, AdaptiveEmbeddingCollection, EmbeddingBagConfig
from adaptive_rec.modules.api import collection_tables as modules
from adaptive_rec.modules.api import options
from tests.matrix import grid

from .jagged import Jagged
from .ranks import patch_ranks
from .test_device import ReadableStreams
from .training import QUICK_WINDOWS, assert_moved

ROWS = {"word": 400, "place": 60, "query": 400, "hour": 24}
SAMPLES = 12
BAGS = {"word": 7, "place": 12, "query": 3, "hour": 1}
READ = [("word", "t_text"), ("query", "t_text"), ("place", "t_place"), ("place", "t_wide"), ("hour", "t_wide")]


@dataclass
class Strided(Jagged):
    """A stand-in for a KeyedJaggedTensor whose keys have batches of their own, each of two ranks."""

    bags: tuple[int, ...] = ()
    inverse: tuple[list[str], Tensor] | None = None

    def stride_per_key_per_rank(self) -> list[list[int]]:
        return [[bags // 2, bags - bags // 2] for bags in self.bags]

    def stride_per_key(self) -> list[int]:
        return list(self.bags)

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return self.inverse

    def of(self, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        at = self.names.index(name)
        lengths = self.counts.split(self.bags)
        first = sum(int(own.sum()) for own in lengths[:at])
        part = slice(first, first + int(lengths[at].sum()))
        starts = lengths[at].cumsum(0) - lengths[at]
        return self.ids[part].long(), starts, None if self.scale is None else self.scale[part]


class PerRank:
    """The same without ``stride_per_key`` and ``inverse_indices_or_none``."""

    def __init__(self, of: Strided) -> None:
        self.keys, self.values, self.lengths, self.inverse_indices = (
            of.keys,
            of.values,
            of.lengths,
            of.inverse_indices_or_none,
        )
        self.stride_per_key_per_rank = of.stride_per_key_per_rank


class OffsetsPerRank:
    """That without ``lengths``."""

    def __init__(self, of: Strided) -> None:
        self.keys, self.values, self.offsets, self.inverse_indices = (
            of.keys,
            of.values,
            of.offsets,
            of.inverse_indices_or_none,
        )
        self.stride_per_key_per_rank = of.stride_per_key_per_rank


def draw(seed: int, weighted: bool = False, lengths: torch.dtype = torch.int64) -> Strided:
    """Bags of no to three ids, and which bag each sample has. Keys of `inverse` are in an order of their own."""
    dice = torch.Generator().manual_seed(seed)
    counts = [torch.randint(0, 4, (BAGS[name],), generator=dice) for name in ROWS]
    ids = [
        (rows * torch.rand(int(own.sum()), generator=dice) ** 4).long()
        for rows, own in zip(ROWS.values(), counts, strict=True)
    ]
    scale = torch.rand(sum(map(len, ids)), generator=dice) + 0.5 if weighted else None
    keys = ["hour", "query", "place", "word"]
    inverse = torch.stack([torch.randint(BAGS[name], (SAMPLES,), generator=dice) for name in keys])
    return Strided(
        list(ROWS), torch.cat(ids), torch.cat(counts).to(lengths), scale, tuple(BAGS.values()), (keys, inverse)
    )


def tables(mean: bool, dim: int = 8) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig("t_text", 8, 400, ["word", "query"], pooling="mean" if mean else "sum"),
        EmbeddingBagConfig("t_place", dim, 60, ["place"]),
        EmbeddingBagConfig("t_wide", 8, 60, ["place", "hour"]),
    ]


def collection(mean: bool = False, dim: int = 4, **options: Any) -> AdaptiveEmbeddingBagCollection:
    given = {"budget": "16KiB", "optimizer": "adagrad", "lr": 0.1, "knobs": QUICK_WINDOWS, **options}
    return AdaptiveEmbeddingBagCollection(tables(mean, dim), **given)


def bags_of(ours: AdaptiveEmbeddingBagCollection) -> nn.ModuleDict:
    """Modules of torch with the rows of a collection."""
    found: dict[str, nn.Module] = {
        table.name: nn.EmbeddingBag(table.num_embeddings, table.embedding_dim, mode=table.pooling, sparse=True)
        for table in ours.embedding_bag_configs()
    }
    nn.ModuleDict({"embedding_bags": nn.ModuleDict(found)}).load_state_dict(ours.state_dict())
    return nn.ModuleDict(found)


def pooled(plain: nn.ModuleDict, given: Strided) -> Tensor:
    assert given.inverse is not None
    keys, index_KB = given.inverse
    parts = [plain[table](*given.of(feature))[index_KB[keys.index(feature)]] for feature, table in READ]
    return torch.cat(parts, dim=1)


@grid(kind=["sum", "mean", "weighted"], prefetch=[True, False], dim=[4, 8], lengths=[torch.int32, torch.int64])
def test_samples_that_share_bags_train_as_in_torch(kind: str, prefetch: bool, dim: int, lengths: torch.dtype) -> None:
    weighted = kind == "weighted"
    ours = collection(kind == "mean", dim, is_weighted=weighted)
    plain = bags_of(ours)
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    batches = [draw(seed, weighted, lengths) for seed in range(16)]
    for given in ours.runtime.prefetch(batches, sparse=lambda given: given) if prefetch else batches:
        wanted, found = pooled(plain, given), ours(given).values()
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)
        optimizer.zero_grad()
        for vectors in (wanted, found):
            vectors.tanh().square().sum().backward()
        optimizer.step()
    assert_moved(ours.runtime)
    assert ours.runtime.stats().looked_up_ahead_ratio == float(prefetch and not weighted)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, plain.state_dict()[name.removeprefix("embedding_bags.")], rtol=0, atol=1e-12)


def test_weights_of_shared_bags_get_the_gradients_of_all_samples() -> None:
    ours, given = collection(is_weighted=True), draw(1, weighted=True)
    plain, found = bags_of(ours), []
    for read in (lambda kjt: ours(kjt).values(), lambda kjt: pooled(plain, kjt)):
        assert given.scale is not None
        scale = given.scale.clone().requires_grad_()
        read(replace(given, scale=scale)).sin().sum().backward()
        found.append(scale.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", [PerRank, OffsetsPerRank])
def test_any_form_of_a_batch_for_each_key_is_accepted(kind: Any) -> None:
    ours, given = collection(), draw(2)
    torch.testing.assert_close(ours(kind(given)).values(), pooled(bags_of(ours), given))


def test_indices_over_batches_of_one_size_are_followed() -> None:
    ours = collection()
    counts = torch.tensor([1, 2, 0] * 4)
    given = Strided(
        list(ROWS), torch.arange(12), counts, None, (3,) * 4, (list(ROWS), torch.tensor([[2, 0, 0, 1]] * 4))
    )
    torch.testing.assert_close(ours(given).values(), pooled(bags_of(ours), given))


def test_a_key_that_is_not_read_may_have_a_larger_batch() -> None:
    """And a smaller one. Indices without samples count as none, as in TorchRec."""
    ours = collection()
    for other in (1, 9):
        counts = torch.ones(4 * 3 + other, dtype=torch.int64)
        ids = torch.arange(len(counts)) % 20
        none = ["word"], torch.empty((1, 0), dtype=torch.int64)
        given = Strided(["other", *ROWS], ids, counts, None, (other, 3, 3, 3, 3), none)
        same = replace(given, inverse=(list(ROWS), torch.arange(3).expand(4, 3)))
        torch.testing.assert_close(ours(given).values(), pooled(bags_of(ours), same))


@pytest.mark.parametrize("ahead", [True, False])
def test_raw_ids_of_shared_bags_train_as_rows_do(ahead: bool) -> None:
    raw, expanded = (collection(ids="raw", seed=1) for _ in range(2))
    batches = [draw(seed) for seed in range(12)]
    for given in raw.runtime.prefetch(batches, sparse=lambda given: given) if ahead else batches:
        found, wanted = raw(given).values(), expanded(per_sample(given)).values()
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)
        for vectors in (found, wanted):
            vectors.tanh().square().sum().backward()


def per_sample(given: Strided) -> Jagged:
    """The same with a bag for each sample."""
    ids, counts = [], []
    assert given.inverse is not None
    for name in given.names:
        own, starts, _ = given.of(name)
        ends = [*starts.tolist()[1:], len(own)]
        for bag in given.inverse[1][given.inverse[0].index(name)].tolist():
            ids.append(own[int(starts[bag]) : ends[bag]])
            counts.append(len(ids[-1]))
    return Jagged(given.names, torch.cat(ids), torch.tensor(counts))


def trained(batches: list[Any], prefetch: bool = False) -> dict[str, Tensor]:
    """Return the rows of a collection after these batches."""
    torch.manual_seed(4)
    ours = collection()
    for given in ours.runtime.prefetch(batches, sparse=lambda given: given) if prefetch else batches:
        ours(given).values().tanh().square().sum().backward()
    assert_moved(ours.runtime)
    return ours.state_dict()


def assert_equal_rows(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, rows in wanted.items():
        torch.testing.assert_close(found[name], rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prefetch", [True, False])
def test_shared_bags_on_a_device_train_as_bags_of_each_sample(monkeypatch: pytest.MonkeyPatch, prefetch: bool) -> None:
    """The device is that of `test_device.py`, in host memory."""
    batches, plain = [draw(seed) for seed in range(16)], options.setup_from
    wanted = trained([per_sample(given) for given in batches])
    monkeypatch.setattr(modules, "setup_from", lambda *given: replace(plain(*given), streams=ReadableStreams(seed=3)))
    assert_equal_rows(trained(batches, prefetch), wanted)


def test_shared_bags_on_two_ranks_train_as_bags_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    on_ranks = patch_ranks(monkeypatch)
    batches = [[draw(2 * step + rank) for step in range(16)] for rank in range(2)]
    found, wanted = (
        on_ranks(2, lambda group, read=read: trained([read(given) for given in batches[group.rank]]))
        for read in (lambda given: given, per_sample)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert_equal_rows(mine, theirs)


def test_lookups_ahead_know_keys_and_batches() -> None:
    """The same tensors, read as other keys or other batches, are other lookups."""
    ours = collection()
    ids, counts = torch.arange(8), torch.ones(8, dtype=torch.int64)
    index = torch.zeros((4, 5), dtype=torch.int64)
    forms = [
        Strided(names, ids, counts, None, bags, (list(ROWS), index))
        for names in (list(ROWS), [*ROWS][::-1])
        for bags in ((2, 2, 2, 2), (3, 1, 2, 2))
    ]
    for first in forms:
        for _ in ours.runtime.prefetch([first], sparse=lambda given: given):
            for form in forms:
                torch.testing.assert_close(ours(form).values(), pooled(bags_of(ours), form))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inverse": None}, r"inverse_indices where their batches are of unequal sizes, got word 7, query 3, place 12"),
        (
            {"inverse": (["word"], torch.zeros((1, 4), dtype=torch.int64))},
            "inverse_indices must have the key query, got word",
        ),
        ({"inverse": (list(ROWS), torch.full((4, 4), 3))}, r"inverse_indices of key query must lie in \[0, 3\), got 3"),
        (
            {"inverse": (list(ROWS), torch.full((4, 4), -1))},
            r"inverse_indices of key word must lie in \[0, 7\), got -1",
        ),
        (
            {"inverse": (list(ROWS), torch.zeros((3, 4), dtype=torch.int64))},
            r"a row for each of its 4 keys, got shape \(3, 4\)",
        ),
        ({"inverse": (list(ROWS), torch.zeros((4, 4)))}, "inverse_indices must be of torch.int32 or torch.int64"),
        ({"bags": (7, 12, 3, 2)}, r"stride_per_key must be .* of 23 together, got \[7, 12, 3, 2\]"),
        ({"bags": (7, 12, 4)}, r"lengths of each of the 4 keys"),
    ],
)
def test_batches_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        collection()(replace(draw(1), **change))


def test_vectors_of_single_rows_keep_the_batch_of_their_key() -> None:
    """TorchRec's EmbeddingCollection has no samples that share vectors: it does not read ``inverse_indices``."""
    ours = AdaptiveEmbeddingCollection(tables(False), optimizer=torch.optim.Adagrad, budget="8KiB", knobs=QUICK_WINDOWS)
    plain = nn.ModuleDict({table.name: nn.Embedding(table.num_embeddings, 8) for table in ours.embedding_configs()})
    nn.ModuleDict({"embeddings": plain}).load_state_dict(ours.state_dict())
    optimizers = [torch.optim.Adagrad(one.parameters(), lr=0.1) for one in (ours, plain)]
    names = ["word", "query", "place@t_place", "place@t_wide", "hour"]
    for given in ours.runtime.prefetch([draw(seed) for seed in range(16)], sparse=lambda given: given):
        found = ours(given)
        assert list(found) == names
        losses = [torch.zeros(()), torch.zeros(())]
        for name, (feature, table) in zip(names, READ, strict=True):
            ids, starts, _ = given.of(feature)
            assert torch.equal(found[name].lengths(), torch.cat([starts, torch.tensor([len(ids)])]).diff())
            torch.testing.assert_close(found[name].values(), plain[table](ids), rtol=0, atol=1e-11)
            losses = [losses[0] + found[name].values().sin().sum(), losses[1] + plain[table](ids).sin().sum()]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[f"embeddings.{name}"], value, rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="stride_per_key"):
        ours(replace(draw(1), bags=(7, 12, 3, 2)))
    with pytest.raises(ValueError, match="lengths must be at least 0, got -1"):
        ours(Jagged(list(ROWS), torch.arange(4), torch.tensor([1, -1, 1, 1])))
