#!/usr/bin/env bash
# torch 2.13.0: a parameter group that is added during LinearLR's warm-up ends far above the learning rate it was given.
#
# Guess before the run: where a scheduler takes a group that is added later (StepLR, ExponentialLR do; LambdaLR, OneCycleLR
# raise), the group goes its own way to its own rate. Seen: LinearLR multiplies each group's rate by the ratio of two factors,
# so the rate of a group that comes at step t ends at lr over the factor of step t: with a warm-up from 0.001 over 1,000
# steps, a group of rate 0.01 that is added after 10 steps has 0.91 for the rest of the run, 91 times as much;
# ConstantLR(factor=0.5) doubles it. No warning.
# What it means: a table or a layer that is added (or unfrozen) during a warm-up needs `lr` times the factor of that step, or
# LambdaLR with the groups it will have. get_last_lr() shows it only for those who look.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import torch
from torch.optim import lr_scheduler


def grow(make, added_at, steps):
    """Return the rates of a first group and of one that is added after so many steps, both made with 0.01, at the end."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.01)
    scheduler = make(optimizer)
    for step in range(steps):
        if step == added_at:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.01})
        optimizer.step()
        scheduler.step()
    return [group["lr"] for group in optimizer.param_groups]


warnings.simplefilter("error")
for added_at in (10, 100, 1_000):
    first, added = grow(lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.001, total_iters=1_000), added_at, 2_000)
    print(f"LinearLR, added after {added_at} steps: {first:.4f} and {added:.4f}")
    assert abs(first - 0.01) < 1e-9
    assert abs(added - 0.01 / (0.001 + 0.999 * added_at / 1_000)) < 1e-6
first, added = grow(lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=20), 10, 100)
print(f"ConstantLR: {first:.4f} and {added:.4f}")
assert abs(first - 0.01) < 1e-9 and abs(added - 0.02) < 1e-9
first, added = grow(lambda optimizer: lr_scheduler.StepLR(optimizer, 20, 0.5), 10, 30)
print(f"StepLR: {first:.4f} and {added:.4f}")
assert first == added == 0.005
PYTHON
