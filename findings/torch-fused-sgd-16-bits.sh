#!/usr/bin/env bash
# torch 2.13.0: SGD(fused=True) on a CPU leaves weights of 16 bits where they are.
#
# Guess before the run: the fused kernels of torch.optim move every weight as the plain loop does, up to rounding, in each type
# that they accept. Seen: under SGD, with bfloat16 or float16, whole groups of weights stay bit by bit as they began and only
# the few that fill no vector move: 3 of 67. The momentum buffer is kept up to date meanwhile, and nothing is reported. A
# bfloat16 network of 4,225 weights has moved one of them after fifty steps. float32, float64, and Adam, AdamW and Adagrad move
# everything, and it is the same with AVX-512, AVX2 and neither. It was reported to torch in July 2026 (pytorch/pytorch#191763).
# What it means: a model of 16 bits that trains on a CPU under a fused SGD does not train; take foreach or the plain loop.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
for capability in default avx2 avx512; do
ATEN_CPU_CAPABILITY=$capability "$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn

assert torch.__version__.startswith("2.13.0"), torch.__version__
print(torch.backends.cpu.get_cpu_capability())
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    for kind in ("SGD", "Adam", "AdamW", "Adagrad"):
        moved = {}
        for fused in (False, True):
            weights = nn.Parameter(torch.ones(67, dtype=dtype))
            optimizer = getattr(torch.optim, kind)([weights], lr=0.125, fused=fused)
            weights.grad = torch.ones_like(weights)
            optimizer.step()
            moved[fused] = int((weights != 1).sum())
        print(f"{kind} {dtype}: {moved[False]} of 67 weights move without fused, {moved[True]} with it")
        stays = kind == "SGD" and dtype.itemsize == 2
        assert moved[False] == 67 and (0 < moved[True] < 16 if stays else moved[True] == 67), (kind, dtype, moved)

weights = nn.Parameter(torch.ones(67, dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weights], lr=0.125, momentum=0.9, fused=True)
for _ in range(10):
    weights.grad = torch.ones_like(weights)
    optimizer.step()
buffer = optimizer.state[weights]["momentum_buffer"]
print(f"ten steps with momentum: first weight {weights[0].item()}, its momentum {buffer[0].item()}")
assert weights[0] == 1 and buffer[0] > 5

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).bfloat16()
before = nn.utils.parameters_to_vector(model.parameters()).clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for _ in range(50):
    optimizer.zero_grad()
    (model(torch.randn(32, 64, dtype=torch.bfloat16)) - 1).square().mean().backward()
    optimizer.step()
changed = int((nn.utils.parameters_to_vector(model.parameters()) != before).sum())
print(f"a network of {len(before)} weights: {changed} changed in fifty steps")
assert len(before) == 4225 and changed == 1
PYTHON
done
