"""The tables of others beside a run on the CPU, by their names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace
from benchmarks.common.rivals import Fbgemm, Tables, TorchRec, TorchSparse, Weights

RIVALS: dict[str, tuple[str, Callable[[Config, RowSpace, Weights], Tables]]] = {
    "torch SGD": ("torch", partial(TorchSparse, rule="sgd")),
    "torch Adagrad": ("torch", partial(TorchSparse, rule="adagrad")),
    "FBGEMM": ("fbgemm_gpu", Fbgemm),
    "FBGEMM fp16 output": ("fbgemm_gpu", partial(Fbgemm, output_type="FP16")),
    "FBGEMM fp16 rows": ("fbgemm_gpu", partial(Fbgemm, rows_type="FP16")),
    "TorchRec": ("torchrec", TorchRec),
}
"""By their names: the module each needs, and how it is made. FBGEMM 1.8.0 has no bf16 on the CPU, neither rows nor output."""


def why_absent(name: str) -> str:
    """Why a rival cannot take part; empty where it can."""
    module = RIVALS[name][0]
    return "" if importlib.util.find_spec(module) else f"{module} is not installed (make bench installs it)"
