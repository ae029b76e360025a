#!/usr/bin/env bash
# FBGEMM 1.8.0 on a CPU: two features of one table are one update only if they stand side by side.
#
# Guess before the run: under feature_table_map the order of the features only decides where their vectors stand; EXACT_ADAGRAD
# adds up all gradients of a row before its one update. Seen: with [0, 0, 1] it does. With [0, 1, 0] a row that both features of
# table 0 look up is updated twice, each time by its own gradient: -0.171 instead of -0.1. Row-wise Adagrad raises a
# RuntimeError with the same map, in the backward pass. SGD, where two updates are the same as one, is right.
# What it means: sort features by table before you make the module, or optimizers with state train another model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 setuptools==84.2.1
"$folder/venv/bin/pip" install --quiet --no-deps fbgemm-gpu-cpu==1.8.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen


def train(kind, features):
    """Return what row 1 of both tables, of zeros before, holds after one step in which each feature looks it up."""
    tables = [(10, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)] * 2
    module = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=tables, optimizer=kind, feature_table_map=features, learning_rate=0.1, eps=1e-8
    )
    for rows in module.split_embedding_weights():
        rows.data.zero_()
    try:
        module(torch.tensor([1, 1, 1]), torch.tensor([0, 1, 2, 3])).sum().backward()
    except RuntimeError as error:
        return str(error)
    return tuple(round(rows[1, 0].item(), 3) for rows in module.split_embedding_weights())


for kind in (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD):
    together, apart = train(kind, [0, 0, 1]), train(kind, [0, 1, 0])
    print(f"{kind}: features of table 0 together {together}, apart {apart}")
    if kind == EmbOptimType.EXACT_SGD:
        assert together == apart == (-0.2, -0.1)
    elif kind == EmbOptimType.EXACT_ADAGRAD:
        assert together == (-0.1, -0.1) and apart == (-0.171, -0.1)
    else:
        assert together == (-0.1, -0.1) and isinstance(apart, str) and "adagrad" in apart
PYTHON
