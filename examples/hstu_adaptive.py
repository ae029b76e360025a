"""HSTU (Zhai et al., 2024, arXiv 2402.17152) ranking listens in order of time, as MLPerf Training's `dlrm_v4` does, at the size
of a laptop: rows of tracks and users are read one by one, and each day of the log is scored before it is trained on.

The difference that adaptive-rec makes: diff examples/hstu_plain.py examples/hstu_adaptive.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from data import StepTimes, print_facts, print_losses
from listens import Batch, Popularity, Size, area_under_curve, arguments, batches, days, log_of
from torch import Tensor, nn
from torch.nn import functional

import adaptive_rec


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.opened = nn.Linear(size.dim, 4 * size.dim)
        self.closed = nn.Linear(size.dim, size.dim)
        self.nearness = nn.Parameter(torch.zeros(size.history + 1))

    def forward(self, state: Tensor, seen: Tensor) -> Tensor:
        """`seen` (B, 1, T, T): which places each place looks at."""
        opened = functional.silu(self.opened(functional.layer_norm(state, state.shape[-1:])))
        gate, *parts = opened.chunk(4, -1)
        value, query, key = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        length = state.shape[1]
        apart = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
        weights = functional.silu(query @ key.transpose(2, 3) + self.nearness[apart]) / length * seen
        found = (weights @ value).transpose(1, 2).flatten(2)
        return state + self.closed(functional.layer_norm(found, found.shape[-1:]) * gate)


class HSTU(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        tracks, users = size.rows(log_of(size))
        self.tracks = nn.Embedding(tracks + 1, size.dim, padding_idx=0, sparse=True)
        self.users = nn.Embedding(users, size.dim, sparse=True)
        for table in (self.tracks, self.users):
            nn.init.normal_(table.weight, std=0.05)
        self.answers = nn.Parameter(0.1 * torch.randn(3, size.dim))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.top = nn.Linear(size.dim, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits (B) of listening to the last track of each sequence."""
        tracks = self.tracks(batch.tracks)
        state = tracks + functional.embedding(batch.listened, self.answers) + self.users(batch.users)[:, None]
        length = state.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & (batch.tracks > 0)[:, None, None]
        for block in self.blocks:
            state = block(state, seen)
        return self.top(state[:, -1] * functional.layer_norm(tracks[:, -1], tracks.shape[-1:])).squeeze(1)


def score(model: nn.Module, rival: Popularity, day: Iterator[Batch]) -> str:
    """Score a day that nothing was trained on yet."""
    scores, others, labels = [], [], []
    model.eval()
    with torch.no_grad():
        for batch in day:
            scores += model(batch).tolist()
            others += rival.scores(batch)
            labels += batch.labels.tolist()
    model.train()
    found, other = (area_under_curve(torch.tensor(each), torch.tensor(labels)) for each in (scores, others))
    return f"AUC {found:.4f}, by the popularity of tracks {other:.4f}"


def training(model: HSTU, size: Size, steps: int, rule: type[torch.optim.Optimizer]) -> Iterator[float]:
    """Train step by step on one day of the log after the other; yields the loss of each step. `steps`: 0 for the whole log."""
    log = log_of(size)
    rival = Popularity()
    tables = rule([model.tracks.weight, model.users.weight], lr=0.1)
    rest = torch.optim.Adam([model.answers, *model.blocks.parameters(), *model.top.parameters()], lr=3e-3)
    runtime = adaptive_rec.wrap(model, **{"optimizer": tables, **size.home})

    def lookups(batch: Batch) -> dict:
        return {"tracks": batch.tracks, "users": batch.users}

    for number, (begin, end) in enumerate(days(log, size)):
        if number:
            print(f"day {number + 1:3}: {score(model, rival, batches(log, size, begin, end))}")
        for batch in runtime.prefetch(batches(log, size, begin, end), sparse=lookups):
            loss = functional.binary_cross_entropy_with_logits(model(batch), batch.labels)
            rest.zero_grad()
            tables.zero_grad()
            loss.backward()
            rest.step()
            tables.step()
            rival.see(batch)
            yield loss.item()
            steps -= 1
            if steps == 0:
                return


def train(steps: int = 0, rule: type[torch.optim.Optimizer] = torch.optim.Adagrad, size: Size | None = None) -> list[float]:
    size = size or Size()
    torch.manual_seed(size.seed)
    model, times = HSTU(size), StepTimes()
    losses = times.of(training(model, size, steps, rule))
    print_facts(model, times)
    return losses


if __name__ == "__main__":
    steps, size = arguments()
    print_losses(train(steps, size=size), 100)
