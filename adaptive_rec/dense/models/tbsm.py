"""The dense part of TBSM: one DLRM tower for every step of a history and for the candidate, attention, a final MLP.

Paper: Ishkhanov et al., "Time-based Sequence Model for Personalization and Recommendation Systems" (arXiv 2008.11922). It
follows the reference code with its defaults: the tower's outputs end with a ReLU and are scaled to length 1; the context is the
sum of the history's outputs, weighted by an MLP that ends with a sigmoid and reads their inner products with the candidate under
a learnt bilinear form; one attention head.

Unlike the reference, a missing step of the history adds nothing to the context (the reference attends to the row of item 0), and
columns outside of the sequence, such as the user, are looked up once for a sample and go to every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from adaptive_rec.batch import SequenceSpec
from adaptive_rec.dense.models.dlrm import DOT, Interaction, Tower
from adaptive_rec.dense.models.layers import Reordered, RowMaps, mlp
from adaptive_rec.placement import RowSpace


class TBSM(nn.Module):
    """Maps dense features (S, X) and pooled rows, a tensor (S, T, D) for each pool, to logits (S,).

    At each of `steps` + 1 steps (the last one is the candidate) the tower reads the step's place, dense columns and rows, and
    those of the sample.
    """

    age: Tensor
    step_dense: Tensor
    shared_dense: Tensor

    def __init__(
        self,
        space: RowSpace,
        dense_features: int,
        sequence: SequenceSpec,
        dim: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        attention_mlp: Sequence[int],
        final_mlp: Sequence[int],
        seed: int,
        interaction: Interaction = DOT,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.steps, self.length, width = sequence.steps, sequence.length, top_mlp[-1]
        self.columns = len(sequence.features)
        shared = sequence.shared_features(len(space.features))
        shared_dense = sequence.shared_dense(dense_features)
        by_step = [column[t] for t in range(self.steps + 1) for column in sequence.features]
        dense_by_step = [column[t] for t in range(self.steps) for column in sequence.dense]
        self.register_buffer("age", torch.arange(self.steps, 0, -1), persistent=False)
        self.register_buffer("step_dense", torch.tensor(dense_by_step, dtype=torch.int64), persistent=False)
        self.register_buffer("shared_dense", torch.tensor(shared_dense, dtype=torch.int64), persistent=False)
        rows, dense = self.columns + len(shared), 1 + len(sequence.dense) + len(shared_dense)
        self.tower = Tower(dense, rows, dim, bottom_mlp, top_mlp, interaction, generator, last=nn.ReLU)
        self.rows = RowMaps(space, dim, generator)
        self.by_step = Reordered([*by_step, *shared])
        self.form = nn.Parameter(torch.empty(width, width).normal_(0, width**-0.5, generator=generator))
        self.attention = mlp([self.steps, *attention_mlp, self.steps], generator, last=nn.Sigmoid)
        self.final = mlp([2 * width, *final_mlp, 1], generator, last=None)

    def forward(self, dense_SX: Tensor, pooled: Sequence[Tensor]) -> Tensor:
        outputs = self._tower(self._dense(dense_SX), self.rows(pooled))
        in_history_ST = self.age <= dense_SX[:, self.length : self.length + 1]
        history, candidate_SM = outputs[:, :-1] * in_history_ST.unsqueeze(2), outputs[:, -1]
        query_SM = candidate_SM @ self.form.T @ self.form
        weights_ST = self.attention(torch.bmm(history, query_SM.unsqueeze(2)).squeeze(2))
        context_SM = torch.bmm(weights_ST.unsqueeze(1), history).squeeze(1)
        logits: Tensor = self.final(torch.cat([context_SM, candidate_SM.to(context_SM.dtype)], dim=1))
        return logits.squeeze(1)

    def _dense(self, dense_SX: Tensor) -> Tensor:
        """Return the input of the tower's bottom MLP at each step: (S, steps + 1, columns)."""
        samples, count = len(dense_SX), self.steps + 1
        place = torch.arange(count, dtype=dense_SX.dtype, device=dense_SX.device) / count
        own = dense_SX[:, self.step_dense].view(samples, self.steps, -1)
        own = torch.cat([own, own.new_zeros(samples, 1, own.shape[2])], dim=1)
        shared = dense_SX[:, self.shared_dense].unsqueeze(1).expand(-1, count, -1)
        return torch.cat([place.view(1, count, 1).expand(samples, -1, -1), own, shared], dim=2)

    def _tower(self, dense: Tensor, rows_SFD: Tensor) -> Tensor:
        """Return the tower's outputs (S, steps + 1, M), each of length 1."""
        samples, count, dim = len(dense), self.steps + 1, rows_SFD.shape[2]
        ordered, of_steps = self.by_step(rows_SFD), count * self.columns
        own = ordered[:, :of_steps].reshape(samples * count, self.columns, dim)
        shared = ordered[:, of_steps:].unsqueeze(1).expand(-1, count, -1, -1).flatten(0, 1)
        outputs = self.tower(dense.flatten(0, 1), [own, shared])
        return normalize(outputs.to(dense.dtype), dim=1).view(samples, count, -1)
