#!/usr/bin/env bash
# torchao 0.18.0 with torch 2.13.0: AdamW with states of 4 bits stops the training of a row if a row beside it is popular.
#
# Guess before the run: states of 8 bits round the second moment of a rare row to zero where a popular row shares its block, so the
# rare row jumps by up to 1,000 learning rates; 4 bits do the same, sooner. Seen: the other way round. Under AdamW4bit a row whose
# gradient is a hundredth of its neighbour's moves 2.2 learning rates in 50 steps and one of a thousandth moves one, where AdamW moves
# them 50: after the first step they stand still. 8 bits move a row of a ten thousandth 4.3 times too far. A row with the same gradients
# in a block of its own moves 50 under all. A block is 128 numbers in 4 bits, 256 in 8 bits, in memory order: 8 and 16 rows of 16 numbers.
# So whether an id trains depends on which ids have the numbers next to its own.
# What it means: gradients of a table's rows differ by their popularity, a hundred times and more. Keep the state of embedding tables in
# 32 bits (a group or an optimizer of their own), or have rows of at least 128 numbers.
# Needs a C++ compiler: the library compiles its step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-deps torchao==0.18.0
"$folder/venv/bin/python" - 2> "$folder/warnings" <<'PYTHON' || { cat "$folder/warnings"; exit 1; }
import torch
from torchao.optim import AdamW4bit, AdamW8bit

LR, STEPS = 0.01, 50
GRADIENTS = {0: 1.0, 1: 1e-1, 2: 1e-2, 3: 1e-3, 4: 1e-4, 100: 1e-2, 200: 1e-3, 300: 1e-4}


def moved(optimizer, dim):
    """Return how many learning rates each row has moved by, after steps with the same gradients."""
    table = torch.nn.Parameter(torch.zeros(512, dim))
    made = optimizer([table], lr=LR, weight_decay=0)
    for _ in range(STEPS):
        table.grad = torch.zeros(512, dim)
        for row, gradient in GRADIENTS.items():
            table.grad[row] = gradient
        made.step()
    return {row: -float(table[row, 0]) / LR for row in GRADIENTS}


found = {}
for dim in (16, 128):
    for optimizer in (torch.optim.AdamW, AdamW8bit, AdamW4bit):
        found[optimizer.__name__, dim] = rows = moved(optimizer, dim)
        print(f"{optimizer.__name__}, rows of {dim}:", ", ".join(f"row {row} {steps:.1f}" for row, steps in rows.items()))
APART = (0, 100, 200, 300)
assert all(abs(steps - 50) < 0.1 for dim in (16, 128) for steps in found["AdamW", dim].values())
assert all(abs(rows[row] - 50) < 0.1 for rows in found.values() for row in APART), "a block of its own, or the largest of its block"
four, eight = found["AdamW4bit", 16], found["AdamW8bit", 16]
assert 15 < four[1] < 20 and 2 < four[2] < 2.5 and four[3] < 1.1 and four[4] < 1.1
assert abs(eight[2] - 50) < 0.5 and 52 < eight[3] < 55 and eight[4] > 200
assert all(abs(steps - 50) < 0.1 for steps in found["AdamW4bit", 128].values()), "a row is a block"
PYTHON
