#!/usr/bin/env bash
# opacus 1.6.0: per-sample gradients of nn.Embedding leave padding_idx out of account: padding is clipped for, and its row is trained.
#
# Guess before the run: with padding_idx the gradients of the samples, and the norms by which they are clipped, are those of autograd one
# sample at a time: nothing for the padding row, which stays zero, however far a history is padded. Seen: the hooks add up the gradient of
# all positions. Histories of 3 items that are padded to 50 have norms of 47 times the gradient of one position, so clipping to 1 moves
# the items' rows by 0.0003 where the same histories unpadded move them by 0.0020; and the padding row moves most of all. Ghost clipping
# keeps the row, but clips by the same norms. grad_sample_mode="functorch" has autograd's gradients. Noise goes to the padding row in all.
# What it means: under differential privacy users of short histories hardly train, by how far their batch is padded, and what was
# a neutral vector is not one. Multiply looked up rows by a mask (its gradient is zero), and set the padding row to zero after each step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet opacus==1.6.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

assert version("opacus") == "1.6.0", version("opacus")
ITEMS, HISTORY, PADDED, USERS = 1_000, 3, 50, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, 8, padding_idx=0)
        self.score = nn.Linear(8, 1)

    def forward(self, history):
        return self.score(self.items(history).sum(1)).squeeze(-1)


draws = torch.Generator().manual_seed(0)
history = torch.randint(1, ITEMS, (USERS, HISTORY), generator=draws)
padded = torch.cat([history, torch.zeros(USERS, PADDED - HISTORY, dtype=torch.long)], dim=1)
labels = torch.randint(0, 2, (USERS,), generator=draws).float()


def step(ids, mode):
    """Return by how much the rows of items and the row of padding move in one step with clipping to 1 and no noise."""
    torch.manual_seed(0)
    model = Model()
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), criterion=nn.BCEWithLogitsLoss(),
        data_loader=DataLoader(TensorDataset(ids, labels), batch_size=USERS), noise_multiplier=0.0, max_grad_norm=1.0,
        poisson_sampling=False, grad_sample_mode=mode)
    private, optimizer, loader = made[0], made[1], made[-1]
    loss = made[2] if mode == "ghost" else nn.BCEWithLogitsLoss()
    before = model.items.weight.detach().clone()
    for batch, clicks in loader:
        optimizer.zero_grad()
        loss(private(batch), clicks).backward()
        optimizer.step()
    moves = (model.items.weight.detach() - before).norm(dim=1)
    return moves[history.unique()].mean().item(), moves[0].item()


for mode in ("hooks", "ghost", "functorch"):
    (plain, _), (items, padding) = step(history, mode), step(padded, mode)
    print(f"{mode}: rows of items move by {plain:.5f} unpadded and {items:.5f} padded; the padding row by {padding:.5f}")
    if mode == "functorch":
        assert abs(items - plain) < 1e-6 and padding == 0
    else:
        assert 5 < plain / items < 7 and (padding > 0.05 if mode == "hooks" else padding == 0)
PYTHON
