"""Tables of bfloat16 and float16 in a user's loop: what torch's modules promise, and rows that keep small updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import (
    AdaptiveEmbedding,
    AdaptiveEmbeddingBagCollection,
    AdaptiveEmbeddingCollection,
    EmbeddingBagConfig,
)
from adaptive_rec.errors import AdaptiveRecError, ConfigError, TrainingError
from tests.matrix import always, grid
from tests.modules.cases import in_turn
from tests.modules.jagged import Jagged

TYPES = [torch.bfloat16, torch.float16]
each_type = pytest.mark.parametrize("dtype", TYPES)
ROWS, DIM = 60, 8


class Model(nn.Module):
    """Sequences and bags over tables of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM, padding_idx=0, dtype=dtype)
        self.words = nn.EmbeddingBag(ROWS, DIM, mode="mean", dtype=dtype)

    def forward(self, ids: Tensor, bags: Tensor) -> Tensor:
        read = self.items(ids)
        assert read.dtype == self.items.weight.dtype
        return (read.mean(1) * self.words(bags)).float().sum(1)


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(3)
    return [(torch.randint(ROWS, (16, 4), generator=dice), torch.randint(ROWS, (16, 3), generator=dice)) for _ in range(steps)]


def in_float32(gradient: Any) -> Tensor:
    return torch.zeros(gradient.shape, dtype=torch.float32).index_copy_(0, gradient.rows, gradient.values)


def neighbours(exact: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the numbers of a type next to exact ones: the largest that is not above, the smallest that is not below."""
    near = exact.to(dtype)
    above, below = torch.tensor(torch.inf, dtype=dtype), torch.tensor(-torch.inf, dtype=dtype)
    down = torch.where(near.float() > exact, torch.nextafter(near, below), near)
    up = torch.where(near.float() < exact, torch.nextafter(near, above), near)
    return down, up


def made(dtype: torch.dtype, kind: Any) -> tuple[Model, Any, Any]:
    torch.manual_seed(0)
    model = Model(dtype)
    optimizer = kind(model.parameters(), lr=0.1)
    return model, optimizer, adaptive_rec.wrap(model, optimizer=optimizer, budget="1KiB")


def trained(model: Model, optimizer: Any, some: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    for ids, bags in some:
        optimizer.zero_grad()
        (model(ids, bags) - 1).square().mean().backward()
        optimizer.step()
    return [value.clone() for value in model.state_dict().values()]


@each_type
def test_reading_the_optimizers_state_changes_nothing(dtype: torch.dtype) -> None:
    found = []
    for reads in (False, True):
        model, optimizer, _ = made(dtype, torch.optim.Adagrad)
        trained(model, optimizer, batches(20))
        if reads:
            assert optimizer.state[model.items.weight]["sum"].dtype == dtype
        found.append(trained(model, optimizer, batches(40)[20:]))
    assert all(map(torch.equal, *found))


@grid(always, in_turn, dtype=TYPES, order=["mr", "mor", "mro", "orm"])
def test_a_loop_resumes_bit_by_bit_in_whichever_order_its_parts_are_loaded(dtype: torch.dtype, order: str) -> None:
    first = made(dtype, torch.optim.Adagrad)
    trained(*first[:2], batches(20))
    saved = copy.deepcopy({name: part.state_dict() for name, part in zip("mor", first, strict=True)})
    assert first[1].state[first[0].items.weight]["sum"].any()
    wanted = trained(*first[:2], batches(40)[20:])
    again = made(dtype, torch.optim.Adagrad)
    for name in order:
        again["mor".index(name)].load_state_dict(saved[name])
    assert all(map(torch.equal, trained(*again[:2], batches(40)[20:]), wanted))


def test_a_state_that_somebody_changes_is_taken() -> None:
    model, optimizer, runtime = made(torch.bfloat16, torch.optim.Adagrad)
    trained(model, optimizer, batches(5))
    before = runtime.states.export(0)["sum"]
    optimizer.state[model.items.weight]["sum"][3] = 7.0
    trained(model, optimizer, [(torch.full((4, 2), 5), torch.full((4, 2), 5))])
    after = runtime.states.export(0)["sum"]
    assert bool((after[3] == 7.0).all())
    assert torch.equal(after[6:], before[6:])


@each_type
@pytest.mark.parametrize("budget", [0, "1MiB"])
def test_a_step_rounds_each_number_to_a_neighbour_of_the_exact_one(dtype: torch.dtype, budget: Any) -> None:
    torch.manual_seed(0)
    plain, lr = Model(dtype), 0.3
    ours = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(ours.parameters(), lr=lr)
    adaptive_rec.wrap(ours, budget=budget, optimizer=optimizer)
    rounded = 0
    for ids, bags in batches(12):
        plain.load_state_dict(ours.state_dict())
        for model in (plain, ours):
            model.zero_grad()
            model(ids, bags).square().mean().backward()
        for name in ("items", "words"):
            weight = getattr(plain, name).weight
            found = getattr(ours, name).weight.grad
            assert found.dtype == dtype
            torch.testing.assert_close(found.dense(), weight.grad, rtol=0.05, atol=2e-3)  # torch sums in 16 bits
        exact = {
            name: one.detach().float() - lr * in_float32(ours.get_parameter(name).grad)
            for name, one in plain.named_parameters()
        }
        optimizer.step()
        for name, wanted in exact.items():
            down, up = neighbours(wanted, dtype)
            now = ours.state_dict()[name]
            assert torch.logical_or(now == down, now == up).all(), name
            rounded += int(((down != up) & (now != wanted.to(dtype))).sum())
    assert rounded > 50, "rounding is stochastic, not to the nearest"


@each_type
@pytest.mark.parametrize("bags", [False, True])
def test_a_popular_rows_gradient_is_the_sum_of_all_its_lookups(dtype: torch.dtype, bags: bool) -> None:
    """torch sums gradients in the table's type: 5,000 ones are 256 in bfloat16 and 2,048 in float16."""
    lookups = 5000
    ids = torch.zeros(lookups, dtype=torch.long)
    table = nn.EmbeddingBag(8, DIM, mode="sum", dtype=dtype) if bags else nn.Embedding(8, DIM, dtype=dtype)
    plain = copy.deepcopy(table)
    model = nn.Sequential(table)
    adaptive_rec.wrap(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), budget=0)
    for each in (plain, model[0]):
        (each(ids, torch.arange(lookups)) if bags else each(ids)).sum().backward()
    assert plain.weight.grad[0, 0] == (256 if dtype == torch.bfloat16 else 2048)
    found = in_float32(model[0].weight.grad)
    assert (found[0] == lookups).all()
    assert not found[1:].any()


def test_updates_below_the_precision_are_kept_on_average() -> None:
    """Rounding to the nearest, which torch does, loses every one of them."""
    rows, steps, lr = 2000, 40, 1e-4
    start = torch.ones(rows, DIM, dtype=torch.bfloat16)
    ours = AdaptiveEmbedding.from_pretrained(start, freeze=False, optimizer=torch.optim.SGD, budget="8KiB")
    plain = nn.Embedding.from_pretrained(start.clone(), freeze=False)
    for model in (ours, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.arange(rows)).float().sum().backward()
            optimizer.step()
    assert torch.equal(plain.weight, start)
    moved = (1 - ours.weight.detach().float()).mean().item()
    assert moved == pytest.approx(steps * lr, rel=0.1)  # a deviation of 1.5 %


@grid(
    always,
    lambda cases: [case for case in cases if case == {"dtype": torch.bfloat16, "make": torch.optim.Adagrad}],
    dtype=TYPES,
    make=[torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam],
)
def test_training_follows_a_run_of_32_bits(dtype: torch.dtype, make: Any) -> None:
    torch.manual_seed(1)
    narrow = Model(dtype)
    if make is torch.optim.SparseAdam:
        narrow.items.sparse = narrow.words.sparse = True
    wide = copy.deepcopy(narrow).to(torch.float32)
    losses = {}
    for name, model in {"narrow": narrow, "wide": wide}.items():
        optimizer = make(model.parameters(), lr=0.05)
        runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
        found = []
        for step, (ids, bags) in enumerate(30 * batches(5)):
            loss = (model(ids, bags) - (ids[:, 0] % 2)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            found.append(loss.item())
            if step == 70:
                runtime.set_knobs(hot_budget_bytes="2KiB")
        losses[name] = torch.tensor(found)
        assert runtime.stats().migrated_rows > 0
    assert losses["wide"][-20:].mean() < 0.8 * losses["wide"][:20].mean()
    torch.testing.assert_close(losses["narrow"], losses["wide"], rtol=0.1, atol=0.02)


@each_type
def test_rows_move_with_their_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    before = copy.deepcopy(model.state_dict())
    runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer, knobs={"reclassify_every": 10})
    for ids, bags in batches(30):
        model(ids, bags).sum().backward()
        optimizer.step()
    assert runtime.stats().migrated_rows > 0
    for name, rows in model.state_dict().items():
        assert rows.dtype == dtype
        assert torch.equal(rows, before[name]), name
    assert all(part.dtype.itemsize == 2 for part in runtime.store.cold.types.weights)


@each_type
def test_writes_copies_and_unwrap_keep_the_type(dtype: torch.dtype) -> None:
    model = Model(dtype)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, eps=1e-4)  # torch's default is 0 in half precision
    for ids, bags in batches(2):  # state of before
        optimizer.zero_grad()
        model(ids, bags).sum().backward()
        optimizer.step()
    sums = optimizer.state[model.items.weight]["sum"].clone()
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    with torch.no_grad():
        model.items.weight[3] = 0.75
        nn.init.constant_(model.words.weight, 0.5)
    assert model.items(torch.tensor([3])).tolist() == [[0.75] * DIM]
    assert copy.deepcopy(model).words.weight.dtype == dtype
    model.load_state_dict(model.state_dict())
    adaptive_rec.unwrap(model, optimizer)
    assert model.words.weight.dtype == dtype
    assert (model.words.weight == 0.5).all()
    assert optimizer.state[model.items.weight]["sum"].dtype == dtype
    assert torch.equal(optimizer.state[model.items.weight]["sum"], sums)
    optimizer.zero_grad()
    model(*batches(1)[0]).sum().backward()
    optimizer.step()


def test_a_row_too_large_for_half_precision_ends_the_loop_and_is_named() -> None:
    table = AdaptiveEmbedding(9, 4, dtype=torch.float16, optimizer="sgd", lr=1e6, name="items")
    with pytest.raises(TrainingError, match=r"half precision must stay within 65504, id 2 of table items"):
        table(torch.tensor([2])).float().sum().backward()


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_that_move_every_row_need_wider_tables(make: Any) -> None:
    model = Model(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"bfloat16; SGD, Adagrad, SparseAdam"):
        adaptive_rec.wrap(model, budget="1KiB", optimizer=make(model.parameters()))
    assert type(model.items) is nn.Embedding


def test_narrow_tables_beside_wide_ones_are_left_and_named() -> None:
    model = nn.ModuleDict({"wide": nn.Embedding(9, 4), "narrow": nn.Embedding(9, 4, dtype=torch.float16)})
    runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer="sgd", lr=0.1)
    assert runtime.report.left == (
        ("narrow", "of torch.float16, beside tables of more bits: wrap modules with tables of one type each"),
    )


def config_of(data_type: str, name: str = "t") -> Any:
    """A configuration with TorchRec's field `data_type`."""
    made: Any = EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=9, feature_names=[f"f_{name}"])
    made.data_type = data_type
    return made


COLLECTIONS: list[Any] = [AdaptiveEmbeddingBagCollection, AdaptiveEmbeddingCollection]


@grid(kind=COLLECTIONS, data_type=["FP16", "BF16"], output=[None, *TYPES, torch.float64], weighted=[False, True])
def test_collections_look_up_vectors_of_float32(kind: Any, data_type: str, output: Any, weighted: bool) -> None:
    """As TorchRec 1.8 does, whose ``forward`` ends in ``.float()``. Sums are of 32 bits, too. `output_dtype` is another type."""
    bags = kind is AdaptiveEmbeddingBagCollection
    options = {"is_weighted": weighted} if bags else {}
    made = kind([config_of(data_type)], optimizer="sgd", lr=0.5, output_dtype=output, **options)
    given = Jagged(["f_t"], torch.tensor([1, 2, 3]), torch.tensor([2, 1]), torch.tensor([0.5, 2.0, 1.0], dtype=torch.float32))
    factor = given.scale.unsqueeze(1) if weighted and bags else 1
    found = made(given)["f_t"]
    vectors = found if isinstance(found, Tensor) else found.values()
    rows = next(iter(made.state_dict().values()))
    assert rows.dtype == {"FP16": torch.float16, "BF16": torch.bfloat16}[data_type]
    wanted = rows.float()[given.ids] * factor
    if bags:
        wanted = torch.stack([wanted[:2].sum(0), wanted[2]])
    assert vectors.dtype == (output or torch.float32)
    torch.testing.assert_close(vectors, wanted.to(vectors.dtype), rtol=1e-6, atol=0)
    vectors.sum().backward()
    stepped = next(iter(made.state_dict().values())).float()[given.ids] - rows.float()[given.ids]
    torch.testing.assert_close(stepped, torch.full_like(stepped, -0.5) * factor, rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_types_that_collections_cannot_hold_are_refused(kind: Any) -> None:
    for wrong in ([config_of("INT8")], [config_of("BF16"), config_of("FP16", "u")]):
        with pytest.raises(AdaptiveRecError, match=r"data_type of all tables must be the same.* a collection of the tables"):
            kind(wrong, optimizer="sgd", lr=0.1)
    with pytest.raises(ConfigError, match=r"output_dtype must be one of torch.float32, .* got torch.int64"):
        kind([config_of("FP16")], optimizer="sgd", lr=0.1, output_dtype=torch.int64)
    made = kind([config_of("BF16"), config_of("FP16", "u")], optimizer="sgd", lr=0.1, dtype=torch.float32)
    assert {rows.dtype for rows in made.state_dict().values()} == {torch.float32}
