#!/usr/bin/env bash
# opacus 1.6.0: an id that stands in a bag more than once gets the gradient of one lookup, and a table of mode max gets none.
#
# Guess before the run: per-sample gradients of nn.EmbeddingBag are those of autograd, one bag at a time, for the modes sum, mean and max.
# Seen: they are written by index, so of an item that is in a history three times one lookup counts: a third of its gradient under sum and
# mean. Under max all gradients of the table are zero: with noise it moves by noise alone, without noise it stands still. With padding_idx
# the padding row has a gradient. No error, no warning.
# What it means: a model of bags that is trained privately learns repeated items (or hashed ids that share a row) too slowly, and a table of
# mode max never learns. Use nn.Embedding and pool its rows yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet opacus==1.6.0 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import copy
from importlib.metadata import version

import torch
from opacus import GradSampleModule
from torch import nn

assert version("opacus") == "1.6.0", version("opacus")
BAGS = [[1, 2, 3], [5, 5, 5, 6], [7], [0, 4]]
ids = torch.tensor(sum(BAGS, []))
starts = torch.tensor([0, 3, 7, 8])


class Model(nn.Module):
    def __init__(self, mode, padding_idx=None):
        super().__init__()
        self.items = nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding_idx)
        self.score = nn.Linear(4, 1, bias=False)
        nn.init.ones_(self.score.weight)

    def forward(self, ids, starts):
        return self.score(self.items(ids, starts)).squeeze(-1)


def gradients(model):
    """Return the gradients of the table for each bag, of autograd and of Opacus."""
    plain = []
    for bag in BAGS:
        alone = copy.deepcopy(model)
        alone(torch.tensor(bag), torch.tensor([0])).sum().backward()
        plain.append(alone.items.weight.grad)
    private = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    private(ids, starts).sum().backward()
    return torch.stack(plain), private.items.weight.grad_sample


for mode, share in (("sum", 1 / 3), ("mean", 1 / 3), ("max", 0)):
    torch.manual_seed(0)
    plain, private = gradients(Model(mode))
    print(f"{mode}, bag of 5, 5, 5, 6: gradient of row 5 by autograd {plain[1, 5, 0]:.3f}, by Opacus {private[1, 5, 0]:.3f}; "
          f"of row 6 {plain[1, 6, 0]:.3f} and {private[1, 6, 0]:.3f}")
    if mode == "max":
        assert plain.abs().sum() > 0 and private.abs().sum() == 0
    else:
        assert torch.allclose(private[1, 5], plain[1, 5] * share) and torch.allclose(private[1, 6], plain[1, 6])
        assert torch.allclose(private[[0, 2, 3]], plain[[0, 2, 3]]), "bags of distinct ids are right"
plain, private = gradients(Model("sum", padding_idx=0))
print(f"sum with padding_idx=0: gradient of the padding row by autograd {plain[3, 0, 0]:.1f}, by Opacus {private[3, 0, 0]:.1f}")
assert plain[3, 0].abs().sum() == 0 and (private[3, 0] == 1).all()
PYTHON
