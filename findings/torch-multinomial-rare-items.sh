#!/usr/bin/env bash
# torch 2.13.0 on a CPU: torch.multinomial never draws the rarer half of four million items, and others twice as often as it should.
#
# Guess before the run: negatives drawn by popularity (float32 weights, replacement=True) come at their own rates however rare they are, and
# their counts differ as chance has it; jax.random.choice draws alike. Seen: with weights of 1 / rank, the most popular item first, torch
# adds the weights up in float32. Where the sum is 15, a weight below 4.8e-7 no longer changes it: no item behind rank 2,126,520 is ever
# drawn (they are 4 per cent of the weight), and those just before come twice as often. Of a million items the rarest come some 3 per
# cent too seldom. torch.distributions.Categorical draws by the same function. float64 weights, the rarest item first, and
# WeightedRandomSampler (it converts to float64) are right. jax 0.10.2 has the right sums for groups of items, but of 50 million draws
# 82 per cent of the rarer half get none, where chance leaves out 34, and the others so many more. Counts of a log are like
# that: weights of 1 beside a sum of 1e8. It was reported to torch in 2020 (pytorch/pytorch#43115).
# What it means: rare items are never negatives, so their scores stay high. Give float64 weights, or sort them from rare to popular.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax
import numpy as np
import torch

ITEMS, DRAWS, TURNS = 4_000_000, 10_000_000, 5
HALF = ITEMS // 2
weights = 1 / np.arange(1, ITEMS + 1)
expected = weights / weights.sum() * DRAWS * TURNS
chance = np.exp(-expected[HALF:]).mean()


def look(name, draw):
    counts = sum(np.bincount(draw(turn), minlength=ITEMS) for turn in range(TURNS))
    never, share = (counts[HALF:] == 0).mean(), counts[HALF:].sum() / expected[HALF:].sum()
    before = counts[2_000_000:2_100_000].sum() / expected[2_000_000:2_100_000].sum()
    print(f"{name}: of the rarer half never drawn {never:.3f} (by chance {chance:.3f})")
    print(f"    draws beside what is right: {share:.3f} of the rarer half, {before:.3f} of ranks 2.0 to 2.1 million")
    return never, share, before


def by_torch(weights, seed):
    torch.manual_seed(seed)
    return torch.multinomial(weights, DRAWS, replacement=True).numpy()


single, double = torch.tensor(weights, dtype=torch.float32), torch.tensor(weights)
backwards = single.flip(0)
probabilities = jax.numpy.asarray(weights / weights.sum(), jax.numpy.float32)
never, share, before = look("torch, float32", lambda seed: by_torch(single, seed))
assert never > 0.9 and share < 0.2 and 1.8 < before < 2.1
for name, draw in {
    "torch, float64": lambda seed: by_torch(double, seed),
    "torch, float32, the rarest first": lambda seed: ITEMS - 1 - by_torch(backwards, seed),
}.items():
    never, share, before = look(name, draw)
    assert max(abs(never - chance), abs(share - 1), abs(before - 1)) < 0.04
never, share, before = look("jax", lambda seed: np.asarray(jax.random.choice(jax.random.key(seed), ITEMS, (DRAWS,), p=probabilities)))
assert never > 0.75 and abs(share - 1) < 0.02

torch.manual_seed(0)
last = torch.distributions.Categorical(probs=single).sample((DRAWS,)).max().item()
counts = np.bincount(by_torch(torch.tensor(weights[:1_000_000], dtype=torch.float32), 0), minlength=1_000_000)
rarest = counts[-10_000:].sum() / (weights[990_000:1_000_000].sum() / weights[:1_000_000].sum() * DRAWS)
print(f"Categorical draws no item behind rank {last}; of a million items the rarest 10,000 come {rarest:.3f} times as often as they should")
assert 2_000_000 < last < 2_200_000 and 0.93 < rarest < 0.99
PYTHON
