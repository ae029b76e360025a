"""All models of torch-rechub 0.9: ranking, matching, several tasks, generative."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss

from tests.clients.client import Client, ids

SIZE, LENGTH, NEGATIVES, DIM = 32, 6, 4, 8
ROWS = {"user": 70, "city": 30, "item": 120, "brand": 50}
MLP = {"dims": [16, 8], "activation": "relu", "dropout": 0.1}
DICE = {"dims": [16, 8], "dropout": 0.1}
TOWER = {"dims": [8], "activation": "relu", "dropout": 0.1}
Batch = dict[str, Tensor]


class Columns:
    """Fresh feature columns. The library keeps a column's table in the column, so every model needs its own."""

    def __init__(self) -> None:
        features = importlib.import_module("torch_rechub.basic.features")
        self.all = {name: features.SparseFeature(name, rows, embed_dim=DIM) for name, rows in ROWS.items()}
        self.fields = list(self.all.values())
        self.dense = [features.DenseFeature("price"), features.DenseFeature("age")]
        self.user, self.item = self.fields[:2], self.fields[2:]

        def sequence(name: str, pooling: str, rows: str = "item") -> Any:
            return features.SequenceFeature(
                name, ROWS[rows], embed_dim=DIM, pooling=pooling, shared_with=rows, padding_idx=0
            )

        self.mean = [sequence("history", "mean")]
        self.history = [sequence("history", "concat")]
        self.negative_history = [sequence("neg_history", "concat")]
        self.negatives = [sequence("negatives", "concat")]
        self.alone = features.SequenceFeature("history", ROWS["item"], embed_dim=DIM, pooling="concat", padding_idx=0)
        self.seq = [
            features.SequenceFeature("seq", ROWS["item"], embed_dim=DIM, pooling="concat"),
            features.SequenceFeature("pos", ROWS["item"], embed_dim=DIM, pooling="concat", shared_with="seq"),
            features.SequenceFeature("neg", ROWS["item"], embed_dim=DIM, pooling="concat", shared_with="seq"),
        ]
        self.other_items = [
            features.SparseFeature("neg_" + one.name, one.vocab_size, embed_dim=DIM, shared_with=one.name)
            for one in self.item
        ]
        self.weight = [features.DenseFeature("weight")]


@dataclass(frozen=True)
class Case:
    """How a model is made of columns, and its loss."""

    room: str
    make: Callable[[Any, Columns], nn.Module]
    loss: Callable[[Any, Batch], Tensor]


def _click(model: Any, batch: Batch) -> Tensor:
    given = model(batch)
    return binary_cross_entropy(given.reshape(SIZE), batch["label"])


def _click_and_auxiliary(model: Any, batch: Batch) -> Tensor:
    given, auxiliary = model(batch)
    return binary_cross_entropy(given, batch["label"]) + auxiliary


def _first_of_list(model: Any, batch: Batch) -> Tensor:
    """The loss over a positive item and its negatives."""
    return cross_entropy(model(batch), torch.zeros(SIZE, dtype=torch.long))


def _pairs(model: Any, batch: Batch) -> Tensor:
    positive, negative = model(batch)
    return -nn.functional.logsigmoid(positive - negative).mean()


def _next_item(model: Any, batch: Batch) -> Tensor:
    return cross_entropy(model(batch), batch["item"])


def _tasks(model: Any, batch: Batch) -> Tensor:
    given = model(batch)
    return binary_cross_entropy(given, batch["labels"][:, : given.shape[1]])


def _next_of_sequence(model: Any, batch: Batch) -> Tensor:
    scores = model(batch["seq"], batch["seconds"])
    return cross_entropy(scores.flatten(0, 1), batch["pos"].flatten())


def _codes(model: Any, batch: Batch) -> Tensor:
    out, codebooks, _ = model(batch["vector"])
    return mse_loss(out, batch["vector"]) + codebooks


def _generated(model: Any, batch: Batch) -> Tensor:
    return model(input_ids=batch["seq"], attention_mask=batch["seq"].ne(0).long(), labels=batch["pos"]).loss


def _tiger(make: Any, columns: Columns) -> nn.Module:
    config = importlib.import_module("transformers").T5Config(
        vocab_size=ROWS["item"], d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return make(config)


def _comirec(model: nn.Module) -> nn.Module:
    """Fill parameters that the library leaves as memory happens to be."""
    for name, parameter in model.named_parameters():
        if "capsule" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


RANKING: dict[str, Callable[[Any, Columns], nn.Module]] = {
    "WideDeep": lambda make, c: make(c.dense, c.fields + c.mean, MLP),
    "DeepFM": lambda make, c: make(c.fields + c.dense, c.fields, MLP),
    "DCN": lambda make, c: make(c.fields + c.dense, 2, {"dims": [16, 8]}),
    "DCNv2": lambda make, c: make(c.fields + c.dense, 2, {"dims": [16, 8]}, low_rank=4, num_experts=2),
    "EDCN": lambda make, c: make(c.fields, 2, MLP),
    "AFM": lambda make, c: make(c.fields, DIM, t=8),
    "FiBiNet": lambda make, c: make(c.fields, MLP),
    "DeepFFM": lambda make, c: make(_linear(c), _cross(c), DIM, MLP),
    "FatDeepFFM": lambda make, c: make(_linear(c), _cross(c), DIM, 2, MLP),
    "BST": lambda make, c: make(c.fields, c.history, [c.all["item"]], MLP, nhead=2, max_seq_len=LENGTH + 1),
    "DIN": lambda make, c: make(c.fields, c.history, [c.all["item"]], DICE, {"dims": [8]}),
    "AutoInt": lambda make, c: make(c.fields, c.dense, num_layers=2, mlp_params=MLP),
}


def _linear(c: Columns) -> list[Any]:
    features = importlib.import_module("torch_rechub.basic.features")
    return [features.SparseFeature(one.name, one.vocab_size, embed_dim=1) for one in c.fields]


def _cross(c: Columns) -> list[Any]:
    """One row for each value and each other field."""
    features = importlib.import_module("torch_rechub.basic.features")
    return [features.SparseFeature(one.name, one.vocab_size * len(c.fields), embed_dim=DIM) for one in c.fields]


MATCHING: dict[str, tuple[Callable[[Any, Columns], nn.Module], Callable[[Any, Batch], Tensor]]] = {
    "DSSM": (lambda make, c: make(c.user + c.mean, c.item, MLP, MLP), _click),
    "dssm_senet.DSSM": (lambda make, c: make(c.user, c.item, MLP, MLP), _click),
    "FaceBookDSSM": (lambda make, c: make(c.user + c.mean, c.item, c.other_items, MLP, MLP), _pairs),
    "YoutubeDNN": (
        lambda make, c: make(c.user + c.mean, [c.all["item"]], c.negatives, {"dims": [16, DIM]}, temperature=0.1),
        _first_of_list,
    ),
    "YoutubeSBC": (
        lambda make, c: make(c.user + c.mean, c.item, c.weight, MLP, MLP, SIZE, temperature=0.1),
        _first_of_list,
    ),
    "MIND": (lambda make, c: make(c.user, c.history, [c.all["item"]], c.negatives, LENGTH), _first_of_list),
    "GRU4Rec": (
        lambda make, c: make(c.user, c.history, [c.all["item"]], c.negatives, {"dims": [DIM]}),
        _first_of_list,
    ),
    "NARM": (lambda make, c: make(c.alone, 8, 0.1, 0.1), _next_item),
    "SASRec": (lambda make, c: make(c.seq, max_len=LENGTH, dropout_rate=0.1), _pairs),
    "SINE": (
        lambda make, c: make(["history"], ["item"], ["negatives"], ROWS["item"], DIM, 8, 10, 3, LENGTH),
        _first_of_list,
    ),
    "STAMP": (lambda make, c: make(c.alone, 0.05, 0.05), _next_item),
    "ComirecDR": (
        lambda make, c: _comirec(make(c.user, c.history, [c.all["item"]], c.negatives, LENGTH)),
        _first_of_list,
    ),
    "ComirecSA": (lambda make, c: make(c.user, c.history, [c.all["item"]], c.negatives), _first_of_list),
}
KINDS = ["classification", "classification"]
TASKS: dict[str, Callable[[Any, Columns], nn.Module]] = {
    "SharedBottom": lambda make, c: make(c.fields + c.dense, KINDS, MLP, [TOWER, TOWER]),
    "ESMM": lambda make, c: make(c.user, c.item, TOWER, TOWER),
    "MMOE": lambda make, c: make(c.fields + c.dense, KINDS, 3, MLP, [TOWER, TOWER]),
    "PLE": lambda make, c: make(c.fields + c.dense, KINDS, 2, 2, 1, MLP, [TOWER, TOWER]),
    "AITM": lambda make, c: make(c.fields + c.dense, 2, MLP, [TOWER, TOWER]),
}
GENERATIVE: dict[str, tuple[Callable[[Any, Columns], nn.Module], Callable[[Any, Batch], Tensor]]] = {
    "HSTUModel": (
        lambda make, c: make(ROWS["item"], d_model=16, n_heads=2, n_layers=2, dqk=8, dv=8, max_seq_len=LENGTH),
        _next_of_sequence,
    ),
    "HLLMModel": (
        lambda make, c: make(torch.randn(ROWS["item"], 16), ROWS["item"], 16, 2, 2, max_seq_len=LENGTH),
        _next_of_sequence,
    ),
    "RQVAEModel": (
        lambda make, c: make(in_dim=12, num_emb_list=[24, 24], e_dim=8, layers=[16], sk_epsilons=[0.0, 0.003]),
        _codes,
    ),
    "TIGERModel": (_tiger, _generated),
}


def _cases() -> dict[str, Case]:
    found = {name: Case("ranking", make, _click) for name, make in RANKING.items()}
    found["DIEN"] = Case(
        "ranking",
        lambda make, c: make(c.fields, c.history, c.negative_history, [c.all["item"]], DICE),
        _click_and_auxiliary,
    )
    found |= {f"{name} (matching)": Case("matching", *both) for name, both in MATCHING.items()}
    found |= {f"{name} (tasks)": Case("multi_task", make, _tasks) for name, make in TASKS.items()}
    found |= {f"{name} (generative)": Case("generative", *both) for name, both in GENERATIVE.items()}
    return found


def _model(name: str, case: Case) -> nn.Module:
    module, bare = f"torch_rechub.models.{case.room}", name.split(" ")[0]
    if "." in bare:
        part, bare = bare.split(".")
        module = f"{module}.{part}"
    return case.make(getattr(importlib.import_module(module), bare), Columns())


def _batches(steps: int) -> list[Batch]:
    dice = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        batch = {name: ids(dice, rows, SIZE, first=1) for name, rows in ROWS.items()}
        batch |= {"neg_" + name: ids(dice, ROWS[name], SIZE, first=1) for name in ("item", "brand")}
        for name in ("history", "neg_history", "seq", "pos", "neg"):
            batch[name] = ids(dice, ROWS["item"], SIZE, LENGTH, first=1)
        batch["history"][: SIZE // 2, LENGTH // 2 :] = 0  # padding
        batch["negatives"] = ids(dice, ROWS["item"], SIZE, NEGATIVES, first=1)
        batch |= {name: torch.rand(SIZE, generator=dice) for name in ("price", "age")}
        batch["weight"] = torch.rand(SIZE, generator=dice) + 0.1
        batch["label"] = torch.rand(SIZE, generator=dice).round()
        batch["labels"] = torch.rand(SIZE, 3, generator=dice).round()
        batch["seconds"] = torch.randint(0, 10_000, (SIZE, LENGTH), generator=dice)
        batch["vector"] = torch.randn(SIZE, 12, generator=dice)
        found.append(batch)
    return found


def clients() -> Iterator[Client]:
    importlib.import_module("torch_rechub.models.ranking")
    for name, case in _cases().items():
        yield Client("torch-rechub", name, lambda name=name, case=case: _model(name, case), _batches, case.loss)
