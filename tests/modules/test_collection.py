"""AdaptiveEmbeddingBagCollection equals an nn.EmbeddingBag for each table; its input is a stand-in for KeyedJaggedTensor."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptive_rec import AdaptiveEmbeddingBagCollection, EmbeddingBagConfig
from adaptive_rec.errors import ConfigError
from tests.matrix import pairwise

from .cases import few_or_many_steps
from .jagged import Jagged, LengthsOnly, OffsetsOnly, draw
from .training import QUICK_WINDOWS, RULES, assert_moved

FEATURES = {"word": 400, "place": 60, "query": 400, "hour": 24, "other": 60}
"""Ids of each feature. `word` and `query` read one table; `place` reads two, so each result is named after its table too."""
NAMES = ["word", "query", "place@t_place", "hour", "place@t_again", "other"]
RULE_NAMES = {"sgd": "sgd", "adagrad": "adagrad", "sparse_adam": "lazy_adam"}


def configs(pooling: str = "both") -> list[EmbeddingBagConfig]:
    mean = "mean" if pooling == "both" else pooling
    return [
        EmbeddingBagConfig(name="t_text", embedding_dim=8, num_embeddings=400, feature_names=["word", "query"]),
        EmbeddingBagConfig(name="t_place", embedding_dim=4, num_embeddings=60, feature_names=["place"], pooling=mean),
        EmbeddingBagConfig(name="t_hour", embedding_dim=3, num_embeddings=24, feature_names=["hour"]),
        EmbeddingBagConfig(
            name="t_again", embedding_dim=8, num_embeddings=60, feature_names=["place", "other"], pooling=mean
        ),
    ]


def collection(weighted: bool = False, **options: Any) -> AdaptiveEmbeddingBagCollection:
    chosen = {
        "budget": "16KiB",
        "optimizer": "adagrad",
        "lr": 0.1,
        "policy": "hotline",
        "knobs": QUICK_WINDOWS,
        **options,
    }
    return AdaptiveEmbeddingBagCollection(tables=configs("sum" if weighted else "both"), is_weighted=weighted, **chosen)


class Plain:
    """The same from nn.EmbeddingBag, with the rows of a collection."""

    def __init__(self, ours: AdaptiveEmbeddingBagCollection, rule: str = "adagrad") -> None:
        self.tables = ours.embedding_bag_configs()
        self.bags = nn.ModuleDict(
            {
                t.name: nn.EmbeddingBag(t.num_embeddings, t.embedding_dim, mode=pooling_of(t), sparse=True)
                for t in self.tables
            }
        )
        nn.ModuleDict({"embedding_bags": self.bags}).load_state_dict(ours.state_dict())
        self.optimizer = RULES[rule](self.bags.parameters())

    def __call__(self, kjt: Jagged, weighted: bool = False) -> list[Tensor]:
        found = []
        for table in self.tables:
            for feature in table.feature_names:
                ids, offsets, scale = kjt.of(feature)
                found.append(self.bags[table.name](ids, offsets, scale if weighted else None))
        return found


def pooling_of(table: Any) -> str:
    return str(getattr(table.pooling, "value", table.pooling)).lower()


def loss_of(parts: list[Tensor]) -> Tensor:
    return torch.stack([(part + 0.1 * number).tanh().square().mean() for number, part in enumerate(parts)]).sum()


@few_or_many_steps(16, 40, pairwise, rule=RULES, kind=["one-hot", "multi-hot", "weighted"], prefetch=[True, False])
def test_it_reads_and_updates_as_bags_of_torch(rule: str, kind: str, prefetch: bool, steps: int) -> None:
    weighted = kind == "weighted"
    lr = {"sgd": 0.05, "adagrad": 0.05, "sparse_adam": 0.01}[rule]
    ours = collection(weighted, optimizer=RULE_NAMES[rule], lr=lr)
    theirs = Plain(ours, rule)
    batches = [draw(FEATURES, 24, seed, weighted=weighted, one_hot=kind == "one-hot") for seed in range(steps)]
    for kjt in ours.runtime.prefetch(batches, sparse=lambda kjt: kjt) if prefetch else batches:
        expected, out = theirs(kjt, weighted), ours(kjt)
        torch.testing.assert_close(out.values(), torch.cat(expected, dim=1), rtol=1e-11, atol=1e-13)
        theirs.optimizer.zero_grad()
        loss_of(expected).backward()
        theirs.optimizer.step()
        loss_of([out[name] for name in NAMES]).backward()
        stats = ours.runtime.stats()
        assert stats.device_bytes <= stats.budget_bytes == 16 << 10
    assert_moved(ours.runtime)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(
            weight, theirs.bags.state_dict()[name.removeprefix("embedding_bags.")], rtol=0, atol=1e-12
        )


def test_the_output_is_a_keyed_tensor() -> None:
    ours = collection()
    kjt = draw(FEATURES, 5, seed=1)
    out = ours(kjt)
    dims = [8, 8, 4, 3, 8, 8]
    assert list(out.keys()) == NAMES
    assert list(out.length_per_key()) == dims
    assert list(out.offset_per_key()) == [0, 8, 16, 20, 23, 31, 39]
    assert out.values().shape == (5, 39)
    assert (out.key_dim(), out.device()) == (1, torch.device("cpu"))
    by_name = out.to_dict()
    assert list(by_name) == NAMES
    for name, dim, part in zip(NAMES, dims, out.values().split(dims, dim=1), strict=True):
        assert by_name[name].shape == (5, dim)
        assert torch.equal(by_name[name], part)
        assert torch.equal(out[name], part)
    with pytest.raises(KeyError, match="nobody"):
        out["nobody"]


def test_a_gradient_of_one_feature_only_moves_that_table() -> None:
    ours, kjt = collection(), draw(FEATURES, 6, seed=2, one_hot=True)
    before = ours.state_dict()
    ours(kjt)["hour"].sum().backward()
    moved = {name for name, weight in ours.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved == {"embedding_bags.t_hour.weight"}


def test_a_collection_used_twice_in_a_step_updates_each_row_once() -> None:
    ours = collection(lr=0.05)
    theirs = Plain(ours)
    for seed in range(12):
        one, two = (draw(FEATURES, 7, seed=10 * seed + part) for part in range(2))
        loss_of([*theirs(one), *theirs(two)]).backward()
        theirs.optimizer.step()
        theirs.optimizer.zero_grad()
        loss_of([out[name] for out in (ours(one), ours(two)) for name in NAMES]).backward()
    assert ours.runtime.step_number == 12
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(
            weight, theirs.bags.state_dict()[name.removeprefix("embedding_bags.")], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("form", [Jagged, OffsetsOnly, LengthsOnly])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_any_form_of_a_jagged_tensor_is_accepted(form: Any, integers: torch.dtype) -> None:
    ours = collection()
    whole = draw(FEATURES, 9, seed=4)
    kjt = Jagged(whole.names, whole.ids.to(integers), whole.counts.to(integers))
    expected = torch.cat(Plain(ours)(whole), dim=1)
    torch.testing.assert_close(ours(kjt if form is Jagged else form(kjt)).values(), expected)


def test_keys_may_be_in_another_order_and_include_unused_ones() -> None:
    ours = collection()
    shuffled = {
        name: {**FEATURES, "unknown": 10_000}[name] for name in ("other", "hour", "unknown", "query", "word", "place")
    }
    kjt = draw(shuffled, 9, seed=4)
    out = ours(kjt)
    assert list(out.keys()) == NAMES
    torch.testing.assert_close(out.values(), torch.cat(Plain(ours)(kjt), dim=1))


def test_bags_that_are_all_empty_and_a_batch_without_samples() -> None:
    ours = collection()
    empty = Jagged(list(FEATURES), torch.empty(0, dtype=torch.int64), torch.zeros(5 * 4, dtype=torch.int64))
    out = ours(empty)
    assert out.values().shape == (4, 39)
    assert not out.values().any()
    before = ours.state_dict()
    out.values().sum().backward()
    assert all(torch.equal(weight, before[name]) for name, weight in ours.state_dict().items())
    none = Jagged(list(FEATURES), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert ours(none).values().shape == (0, 39)


def test_gradients_of_the_weights_of_lookups() -> None:
    ours = collection(weighted=True)
    theirs, kjt = Plain(ours), draw(FEATURES, 6, seed=3, weighted=True)
    assert kjt.scale is not None
    found = []
    for read in (lambda kjt: [ours(kjt)[name] for name in NAMES], lambda kjt: theirs(kjt, weighted=True)):
        scale = kjt.scale.clone().requires_grad_()
        loss_of(read(Jagged(kjt.names, kjt.ids, kjt.counts, scale))).backward()
        assert scale.grad is not None
        found.append(scale.grad)
    torch.testing.assert_close(*found)


def test_averages_of_weighted_rows_train_exactly() -> None:
    """Weighted rows over the number of lookups, as FBGEMM 1.8 defines it; against plain operations of torch 2.13 in float64.
    torch's EmbeddingBag, and with it TorchRec 1.8, refuses this, and FBGEMM's gradient of rows on CPUs is another."""
    mean = EmbeddingBagConfig("t_mean", 8, 60, ["place", "other"], pooling="mean")
    tables = [mean, EmbeddingBagConfig("t_sum", 8, 24, ["hour"])]
    ours = AdaptiveEmbeddingBagCollection(tables, is_weighted=True, optimizer="sgd", lr=0.5, budget="2KiB", knobs=QUICK_WINDOWS)
    plain = {name.split(".")[1]: rows.clone().requires_grad_() for name, rows in ours.state_dict().items()}
    optimizer = torch.optim.SGD(plain.values(), lr=0.5)
    for seed in range(24):
        drawn = draw({"place": 60, "hour": 24, "other": 60}, 9, seed, weighted=True)
        assert drawn.scale is not None
        scales = [drawn.scale.clone().requires_grad_() for _ in range(2)]
        wanted = []
        for feature, table in (("place", "t_mean"), ("other", "t_mean"), ("hour", "t_sum")):
            ids, first, scale = Jagged(drawn.names, drawn.ids, drawn.counts, scales[0]).of(feature)
            lengths = torch.cat([first, torch.tensor([len(ids)])]).diff()
            sample = torch.arange(9).repeat_interleave(lengths)
            summed = torch.zeros(9, 8).index_add(0, sample, plain[table][ids] * scale.unsqueeze(1))
            wanted.append(summed / lengths.clamp(min=1).unsqueeze(1) if table == "t_mean" else summed)
        found = ours(Jagged(drawn.names, drawn.ids, drawn.counts, scales[1])).values()
        torch.testing.assert_close(found, torch.cat(wanted, dim=1), rtol=1e-11, atol=1e-13)
        optimizer.zero_grad()
        for vectors in (found, torch.cat(wanted, dim=1)):
            vectors.sin().sum().backward()
        optimizer.step()
        torch.testing.assert_close(scales[1].grad, scales[0].grad, rtol=1e-11, atol=1e-13)
    assert_moved(ours.runtime)
    for name, rows in plain.items():
        torch.testing.assert_close(ours.state_dict()[f"embedding_bags.{name}.weight"], rows.detach(), rtol=0, atol=1e-12)


# State ---------------------------------------------------------------------------------------------------------------


def test_a_state_dict_has_plain_names_and_loads_into_bags_of_torch_and_back() -> None:
    ours = collection()
    names = [f"embedding_bags.{table.name}.weight" for table in configs()]
    state = ours.state_dict()
    assert list(state) == names
    assert all(type(weight) is Tensor and not weight.requires_grad for weight in state.values())
    theirs = nn.ModuleDict({"embedding_bags": Plain(ours).bags})
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(1.0)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, state[name] + 1.0)
    one = nn.EmbeddingBag(24, 3)
    one.load_state_dict({"weight": ours.state_dict()["embedding_bags.t_hour.weight"]})
    kjt = draw(FEATURES, 6, seed=2, one_hot=True)
    torch.testing.assert_close(ours(kjt)["hour"], one(kjt.of("hour")[0], kjt.of("hour")[1]))


def test_rows_loaded_during_training_are_trained_further() -> None:
    """Hot rows too."""
    ours = collection()
    for seed in range(20):
        loss_of(list(ours(draw(FEATURES, 24, seed)).to_dict().values())).backward()
    assert_moved(ours.runtime)
    target = {name: torch.randn_like(weight) for name, weight in ours.state_dict().items()}
    ours.load_state_dict(target)
    assert all(torch.equal(weight, target[name]) for name, weight in ours.state_dict().items())
    kjt = draw(FEATURES, 24, seed=3)
    torch.testing.assert_close(ours(kjt).values(), torch.cat(Plain(ours)(kjt), dim=1))


def test_init_fn_sets_the_first_rows() -> None:
    tables = configs()
    tables[1].init_fn = lambda rows: rows.fill_(0.25)
    torch.manual_seed(1)
    ours = AdaptiveEmbeddingBagCollection(tables=tables, optimizer="sgd", lr=0.1, budget="16KiB")
    state = ours.state_dict()
    assert torch.equal(state["embedding_bags.t_place.weight"], torch.full((60, 4), 0.25))
    text = state["embedding_bags.t_text.weight"]
    assert 0 < text.abs().max() <= 400**-0.5, "as TorchRec has it: uniform, by the number of rows"


# As TorchRec has it --------------------------------------------------------------------------------------------------


def test_the_interface_is_that_of_torchrec() -> None:
    ours = collection()
    assert [table.name for table in ours.embedding_bag_configs()] == ["t_text", "t_place", "t_hour", "t_again"]
    assert ours.is_weighted() is False
    assert collection(weighted=True).is_weighted() is True
    assert ours.device == torch.device("cpu")
    tables = ["t_text", "t_place", "t_hour", "t_again"]
    assert [name for name, _ in ours.named_parameters()] == [f"embedding_bags.{name}.weight" for name in tables]
    assert set(ours.runtime.stats().tables) == {*tables}


def test_invalid_tables_and_inputs_are_refused() -> None:
    twice = [configs()[0], configs()[0]]
    with pytest.raises(Exception, match="t_text"):
        AdaptiveEmbeddingBagCollection(tables=twice, optimizer="sgd", lr=0.1, budget="16KiB")
    with pytest.raises(Exception, match="tables"):
        AdaptiveEmbeddingBagCollection(tables=[], optimizer="sgd", lr=0.1, budget="16KiB")
    ours = collection()
    without = {name: rows for name, rows in FEATURES.items() if name != "hour"}
    with pytest.raises(Exception, match="hour"):
        ours(draw(without, 4, seed=1))
    with pytest.raises(Exception, match="24"):
        ours(draw({**FEATURES, "hour": 4000}, 40, seed=1))
    with pytest.raises(Exception, match=r"lengths|offsets"):
        ours(Jagged(list(FEATURES), torch.zeros(3, dtype=torch.int64), torch.ones(5, dtype=torch.int64)))
    with pytest.raises(Exception, match=r"lengths|offsets"):
        ours(Jagged(list(FEATURES), torch.zeros(6, dtype=torch.int64), torch.ones(6, dtype=torch.int64)))
    with pytest.raises(TypeError):
        ours(torch.zeros(3))


@pytest.mark.parametrize("given", [torch.optim.Adagrad, functools.partial(torch.optim.SGD, momentum=0.9)])
def test_an_optimizer_of_torch_is_refused_where_rows_are_updated_in_the_backward_pass(given: Any) -> None:
    """Rows would follow the default rate of the class, whatever the rate of the optimizer that is made of it."""
    tables = [EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["a"])]
    with pytest.raises(ConfigError, match=r"must be the name of a rule \(sgd, .*\) with its lr, .* got (Adagrad|SGD);"):
        AdaptiveEmbeddingBagCollection(tables=tables, budget="1KiB", optimizer=given)
