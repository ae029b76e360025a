#!/usr/bin/env bash
# torch 2.13.0: nn.EmbeddingBag(mode="max") shows a NaN or hides it, by the order of the ids in the bag.
#
# Guess before the run: the largest of a set of numbers with a NaN among them is NaN, as torch.amax and torch.maximum have it,
# so a table that has diverged is seen in the loss. Seen: a row of NaN counts only as the first id of its bag. Behind any other
# id it is left out, forward and backward, and the same set of ids gives a finite vector. Sums and means are NaN in both orders.
# What it means: a finite loss says nothing of the rows of such a table; check the table itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn import functional

assert torch.__version__.startswith("2.13.0"), torch.__version__
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    for order in ([2, 1, 3], [1, 2, 3], [1, 3, 2]):
        table = torch.ones(4, 3, dtype=dtype)
        table[2] = torch.nan
        table.requires_grad_()
        ids, offsets = torch.tensor(order), torch.tensor([0])
        vector = functional.embedding_bag(ids, table, offsets, mode="max")
        vector.sum().backward()
        is_nan = bool(vector.isnan().all())
        print(f"{dtype}, ids {order}, row 2 is NaN: {vector[0].tolist()}, amax {table[ids].amax(0).tolist()}")
        assert table[ids].amax(0).isnan().all()
        assert functional.embedding_bag(ids, table, offsets, mode="sum").isnan().all()
        assert is_nan == (order[0] == 2) and not (vector.isfinite().all() and is_nan)
        assert bool(table.grad[2].any()) == (order[0] == 2)
PYTHON
