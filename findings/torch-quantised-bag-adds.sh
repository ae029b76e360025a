#!/usr/bin/env bash
# torch 2.13.0: a quantised nn.EmbeddingBag adds rows, whatever its mode was.
#
# Guess before the run: torch.ao.quantization's prepare and convert turn an EmbeddingBag of mode "mean" or "max" into a
# quantised one that pools as before, or refuse it. Seen: the module made has no mode; it returns sums. For a bag of four ids
# the vector is four times the mean, and under "max" it has nothing to do with the largest values. No error and no warning says
# so.
# What it means: quantise tables of mode "sum" only, or divide the vectors by the lengths of the bags yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import torch.ao.quantization as quantization
from torch import nn
from torch.nn import functional

assert torch.__version__.startswith("2.13.0"), torch.__version__
torch.manual_seed(0)
ids, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 4])
for mode in ("sum", "mean", "max"):
    model = nn.Sequential()
    model.bag = nn.EmbeddingBag(10, 8, mode=mode, include_last_offset=True)
    model.bag.qconfig = quantization.float_qparams_weight_only_qconfig
    quantised = quantization.convert(quantization.prepare(model.eval())).bag
    before, after = model.bag(ids, offsets)[0], quantised(ids, offsets)[0]
    added = functional.embedding_bag(ids, model.bag.weight, offsets, mode="sum", include_last_offset=True)[0]
    to_mode, to_sum = (before - after).abs().max().item(), (added - after).abs().max().item()
    print(f"{mode}: {type(quantised).__module__}, largest difference from its own mode {to_mode:.3f}, from the sum {to_sum:.3f}")
    assert "quantized" in type(quantised).__module__
    assert to_sum < 0.05 and (to_mode < 0.05) == (mode == "sum"), (mode, to_mode, to_sum)
PYTHON
