#!/usr/bin/env bash
# torch 2.13.0: the sum, mean and maximum of a nested tensor that torch.nested.narrow cut out of a padded batch count the padding.
#
# Guess before the run: a reduction over a nested tensor gives what a loop over its samples gives, or is refused. Seen:
# narrow, the documented way from a padded batch with lengths to a jagged nested tensor, keeps the padded batch and notes the
# lengths. Reductions along one dimension are refused for it, but sum(), mean(), amax() and max() of the whole run over the
# padding too; mean() divides that sum by the number of valid positions. numel(), unbind() and contiguous().sum() leave the
# padding out. The gradient of mean() reaches the padding.
# What it means: a loss that is averaged over valid positions this way learns from the padding. Call contiguous() first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch

lengths = torch.tensor([2, 1, 3])
padded = torch.tensor([[1.0, 1.0, 9.0, 9.0], [1.0, 9.0, 9.0, 9.0], [1.0, 1.0, 1.0, 9.0]], requires_grad=True)
view = torch.nested.narrow(padded, 1, torch.zeros(3, dtype=torch.long), lengths, layout=torch.jagged)
print("samples:", [sample.tolist() for sample in view.unbind()], "numel:", view.numel())
assert [sample.tolist() for sample in view.unbind()] == [[1, 1], [1], [1, 1, 1]]
for name in ("sum", "mean", "amax", "max"):
    seen, right = getattr(view, name)().item(), getattr(torch.cat(view.unbind()), name)().item()
    copied = getattr(view.contiguous(), name)().item()
    print(f"{name}(): {seen}, of the samples {right}, after contiguous() {copied}")
    assert right == copied == (6 if name == "sum" else 1)
    assert seen == {"sum": 60, "mean": 5, "amax": 9, "max": 9}[name]
view.mean().backward()
print("gradient of mean():", padded.grad.tolist())
assert (padded.grad != 0).all()
PYTHON
