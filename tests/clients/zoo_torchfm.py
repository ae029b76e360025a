"""All models of torchfm 0.7: factorization machines and their kin over one table for all fields."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.clients.client import Client, ids

FIELDS = [90, 40, 160, 12, 60]
SIZE = 32

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LogisticRegressionModel": ("lr", {}),
    "FactorizationMachineModel": ("fm", {"embed_dim": 8}),
    "FieldAwareFactorizationMachineModel": ("ffm", {"embed_dim": 4}),
    "FieldAwareNeuralFactorizationMachineModel": (
        "fnfm",
        {"embed_dim": 4, "mlp_dims": (16, 16), "dropouts": (0.2, 0.2)},
    ),
    "FactorizationSupportedNeuralNetworkModel": ("fnn", {"embed_dim": 8, "mlp_dims": (16, 16), "dropout": 0.2}),
    "WideAndDeepModel": ("wd", {"embed_dim": 8, "mlp_dims": (16, 16), "dropout": 0.2}),
    "NeuralFactorizationMachineModel": ("nfm", {"embed_dim": 8, "mlp_dims": (16,), "dropouts": (0.2, 0.2)}),
    "NeuralCollaborativeFiltering": (
        "ncf",
        {
            "embed_dim": 8,
            "mlp_dims": (16, 16),
            "dropout": 0.2,
            "user_field_idx": np.array([0]),
            "item_field_idx": np.array([2]),
        },
    ),
    "ProductNeuralNetworkModel": (
        "pnn",
        {"embed_dim": 8, "mlp_dims": (16, 16), "dropout": 0.2, "method": "inner"},
    ),
    "DeepCrossNetworkModel": ("dcn", {"embed_dim": 8, "num_layers": 3, "mlp_dims": (16, 16), "dropout": 0.2}),
    "DeepFactorizationMachineModel": ("dfm", {"embed_dim": 8, "mlp_dims": (16, 16), "dropout": 0.2}),
    "ExtremeDeepFactorizationMachineModel": (
        "xdfm",
        {"embed_dim": 8, "cross_layer_sizes": (8, 8), "split_half": False, "mlp_dims": (16, 16), "dropout": 0.2},
    ),
    "AttentionalFactorizationMachineModel": ("afm", {"embed_dim": 8, "attn_size": 8, "dropouts": (0.2, 0.2)}),
    "AutomaticFeatureInteractionModel": (
        "afi",
        {
            "embed_dim": 8,
            "atten_embed_dim": 16,
            "num_heads": 2,
            "num_layers": 2,
            "mlp_dims": (16, 16),
            "dropouts": (0.1, 0.1, 0.1),
        },
    ),
    "AdaptiveFactorizationNetwork": (
        "afn",
        {"embed_dim": 8, "LNN_dim": 20, "mlp_dims": (16, 16), "dropouts": (0.1, 0.1, 0.1)},
    ),
}


def _model(name: str) -> nn.Module:
    module, options = MODELS[name]
    return getattr(importlib.import_module(f"torchfm.model.{module}"), name)(FIELDS, **options)


def _batches(steps: int) -> list[Any]:
    dice = torch.Generator().manual_seed(1)
    return [
        (
            torch.stack([ids(dice, rows, SIZE) for rows in FIELDS], dim=1),
            torch.rand(SIZE, generator=dice).round(),
        )
        for _ in range(steps)
    ]


def clients() -> Iterator[Client]:
    importlib.import_module("torchfm.model.fm")
    for name in MODELS:
        yield Client(
            "torchfm",
            name,
            lambda name=name: _model(name),
            _batches,
            lambda model, batch: nn.functional.binary_cross_entropy(model(batch[0]), batch[1]),
        )
