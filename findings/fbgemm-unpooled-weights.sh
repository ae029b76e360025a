#!/usr/bin/env bash
# FBGEMM 1.8.0 on a CPU: un-pooled lookups take per_sample_weights and leave them out.
#
# Guess before the run: PoolingMode.NONE with per_sample_weights gives each row times its weight, or refuses weights, as
# nn.EmbeddingBag refuses them for means. Seen: the training module and the one for inference return the bare rows, whatever the
# weights are; the weights get no gradient (None) and the rows get that of the unweighted lookup. Sums are weighted.
# What it means: multiply the vectors by the weights yourself; position weights that are meant to be learnt stay as they began.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 setuptools==84.2.1
"$folder/venv/bin/pip" install --quiet --no-deps fbgemm-gpu-cpu==1.8.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

rows = torch.arange(80.0).view(10, 8)
for pooling in (PoolingMode.SUM, PoolingMode.NONE):
    module = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[(10, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_SGD, learning_rate=1.0, pooling_mode=pooling,
    )
    table = module.split_embedding_weights()[0].data
    table.copy_(rows)
    weights = torch.tensor([2.0, 3.0], requires_grad=True)
    vectors = module(torch.tensor([1, 2]), torch.tensor([0, 2]), per_sample_weights=weights)
    vectors.sum().backward()
    moved = (rows - table)[1:3, 0].tolist()
    print(f"training, {pooling}: {vectors[:, 0].tolist()}, gradient of the weights {weights.grad}, rows moved by {moved}")
    if pooling == PoolingMode.SUM:
        assert torch.equal(vectors[0], 2 * rows[1] + 3 * rows[2]) and weights.grad is not None and moved == [2.0, 3.0]
    else:
        assert torch.equal(vectors, rows[1:3]) and weights.grad is None and moved == [1.0, 1.0]

module = IntNBitTableBatchedEmbeddingBagsCodegen(
    [("table", 10, 8, SparseType.FP32, EmbeddingLocation.HOST)],
    pooling_mode=PoolingMode.NONE, device="cpu", output_dtype=SparseType.FP32,
)
module.fill_random_weights()
module.split_embedding_weights()[0][0].copy_(rows.view(torch.uint8))
lookup = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
vectors = module(*lookup, per_sample_weights=torch.tensor([2.0, 3.0]))
print(f"inference, {PoolingMode.NONE}: {vectors[:, 0].tolist()}")
assert torch.equal(vectors, rows[1:3])
PYTHON
