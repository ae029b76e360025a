"""All models of DeepCTR-Torch 0.3: click models and multi-task models, with the library's own L2 terms over tables."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.clients.client import Client, ids

FIELDS = {"c1": 90, "c2": 40, "c3": 160, "c4": 60}
DENSE = ("d1", "d2")
DIM = 8
SIZE = 32
HISTORY = 5
SMALL: dict[str, Any] = {"dnn_hidden_units": (16, 8)}
MODELS: dict[str, dict[str, Any]] = {
    "WDL": SMALL,
    "DeepFM": SMALL,
    "xDeepFM": {**SMALL, "cin_layer_size": (8, 8)},
    "AFM": {},
    "DIFM": {**SMALL, "att_head_num": 2},
    "IFM": SMALL,
    "AutoInt": {**SMALL, "att_layer_num": 2},
    "DCN": SMALL,
    "DCNMix": {**SMALL, "low_rank": 4, "num_experts": 2},
    "FiBiNET": SMALL,
    "NFM": SMALL,
    "MLR": {},
    "ONN": SMALL,
    "PNN": SMALL,
    "CCPM": {**SMALL, "conv_kernel_width": (3, 2), "conv_filters": (2, 2)},
    "AFN": {"ltl_hidden_size": 16, "afn_dnn_hidden_units": (16, 8)},
    "DIN": {**SMALL, "att_hidden_size": (8, 4)},
    "DIEN": {**SMALL, "gru_type": "AUGRU", "use_negsampling": True, "att_hidden_units": (8, 4)},
    "SharedBottom": {"bottom_dnn_hidden_units": (16,), "tower_dnn_hidden_units": (8,)},
    "ESMM": {"tower_dnn_hidden_units": (16, 8)},
    "MMOE": {"expert_dnn_hidden_units": (16,), "gate_dnn_hidden_units": (8,), "tower_dnn_hidden_units": (8,)},
    "PLE": {"expert_dnn_hidden_units": (16,), "gate_dnn_hidden_units": (8,), "tower_dnn_hidden_units": (8,)},
}
TWO_LISTS = {
    "WDL", "DeepFM", "xDeepFM", "AFM", "DIFM", "IFM", "AutoInt", "DCN", "DCNMix", "FiBiNET", "NFM", "ONN", "CCPM", "AFN",
}  # fmt: skip
"""Models that take columns for a linear and for a deep part."""
TASKS = {"SharedBottom", "ESMM", "MMOE", "PLE"}
INTERESTS = {"DIN", "DIEN"}


def _columns(name: str) -> list[Any]:
    inputs = importlib.import_module("deepctr_torch.inputs")
    found: list[Any] = [inputs.SparseFeat(field, rows, embedding_dim=DIM) for field, rows in FIELDS.items()]
    found += [inputs.DenseFeat(field, 1) for field in DENSE if name not in {"FiBiNET", "CCPM", "AFM"}]
    if name in INTERESTS:
        for prefix in ("hist_", "neg_hist_") if name == "DIEN" else ("hist_",):
            same = inputs.SparseFeat(prefix + "c3", FIELDS["c3"], embedding_dim=DIM, embedding_name="c3")
            found.append(inputs.VarLenSparseFeat(same, maxlen=HISTORY, length_name="seq_length"))
    elif name not in {"ONN", "IFM", "DIFM", "CCPM", "FiBiNET", "AutoInt", "AFN", "xDeepFM", "AFM", "NFM", "PNN"}:
        tags = inputs.SparseFeat("tags", 70, embedding_dim=DIM)
        found.append(inputs.VarLenSparseFeat(tags, maxlen=HISTORY, combiner="mean"))
    return found


def _model(name: str) -> nn.Module:
    models, columns = importlib.import_module("deepctr_torch.models"), _columns(name)
    options = dict(MODELS[name], device="cpu")
    if name in INTERESTS:
        return getattr(models, name)(columns, ["c3"], **options)
    if name in TWO_LISTS:
        return getattr(models, name)(columns, columns, **options)
    return getattr(models, name)(columns, **options)


def _batches(name: str, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return inputs in the order of the library's feature index: one matrix for all features."""
    index = importlib.import_module("deepctr_torch.inputs").build_input_features(_columns(name))
    dice, found = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        values = torch.zeros(SIZE, max(end for _, end in index.values()))
        for feature, (first, end) in index.items():
            if feature in DENSE:
                part = torch.rand(SIZE, end - first, generator=dice)
            elif feature == "seq_length":
                part = torch.randint(1, HISTORY + 1, (SIZE, 1), generator=dice)
            else:
                rows = FIELDS.get(feature.removeprefix("neg_").removeprefix("hist_"), 70)
                part = ids(dice, rows, SIZE, end - first)
            values[:, first:end] = part
        found.append((values, torch.rand(SIZE, 2 if name in TASKS else 1, generator=dice).round()))
    return found


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of the library's ``fit``: of all tasks, of regularization and of the model's auxiliary loss."""
    given, labels = batch
    wanted = nn.functional.binary_cross_entropy(model(given), labels, reduction="sum")
    return (wanted + model.get_regularization_loss() + model.aux_loss).sum()


def clients() -> Iterator[Client]:
    importlib.import_module("deepctr_torch.models")
    for name in MODELS:
        yield Client(
            "DeepCTR-Torch",
            name,
            lambda name=name: _model(name),
            lambda steps, name=name: _batches(name, steps),
            _loss,
        )
