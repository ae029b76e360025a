"""A small transformer whose tokens also look up the rows of the 2-, 3- and 4-grams that end at them, in tables by hash, as in
Engram (arXiv 2601.07372): knowledge of word sequences in memory instead of in layers. Its layers are nanochat's.

The difference that adaptive-rec makes: diff examples/ngram_lm_plain.py examples/ngram_lm_adaptive.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from data import StepTimes, print_facts, print_losses
from ngrams import VOCABULARY, Batch, Size, arguments, batches
from torch import Tensor, nn
from torch.nn import functional

import adaptive_rec


def normed(state: Tensor) -> Tensor:
    return functional.rms_norm(state, state.shape[-1:])


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.asked = nn.Linear(size.width, 3 * size.width, bias=False)
        self.answered = nn.Linear(size.width, size.width, bias=False)
        self.widened = nn.Linear(size.width, 4 * size.width, bias=False)
        self.narrowed = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, state: Tensor, turns: Tensor) -> Tensor:
        parts = self.asked(normed(state)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (normed(turned(part, turns)) for part in parts[:2])
        seen = functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        state = state + self.answered(seen.transpose(1, 2).flatten(2))
        return state + self.narrowed(functional.relu(self.widened(normed(state))).square())


def turned(part: Tensor, turns: Tensor) -> Tensor:
    """Turn pairs of numbers by their place in the sequence (RoPE, arXiv 2104.09864)."""
    one, other = part.chunk(2, -1)
    return torch.cat([one * turns.cos() - other * turns.sin(), one * turns.sin() + other * turns.cos()], -1)


class LanguageModel(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Parameter(0.02 * torch.randn(VOCABULARY, size.width))
        self.ngrams = nn.ModuleList()
        for _ in range(size.orders):
            empty = torch.zeros(size.rows, size.dim)
            self.ngrams.append(nn.Embedding.from_pretrained(empty, freeze=False, sparse=size.sparse))
        self.joined = nn.Linear(max(size.orders, 1) * size.dim, size.width, bias=False)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        half = size.width // size.heads // 2
        self.register_buffer("turns", torch.outer(torch.arange(size.length), 10_000.0 ** (-torch.arange(half) / half)))

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits of the following tokens, (B, T, VOCABULARY)."""
        state = functional.embedding(batch.tokens, self.tokens)
        if self.ngrams:
            rows = [table(ids) for table, ids in zip(self.ngrams, batch.ngrams, strict=True)]
            state = state + self.joined(torch.cat(rows, -1))
        state = normed(state)
        for block in self.blocks:
            state = block(state, self.turns)
        return self.head(normed(state))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch).flatten(0, 1), batch.following.flatten())


def held_out_loss(model: nn.Module, size: Size, steps: int = 20) -> float:
    model.eval()
    with torch.no_grad():
        return sum(loss_of(model, batch).item() for batch in batches(steps, size, held_out=True)) / steps


def training(model: LanguageModel, size: Size, steps: int, rule: type[torch.optim.Optimizer]) -> Iterator[float]:
    """Train step by step; yields the loss of each."""
    tables = rule(model.ngrams.parameters(), lr=0.01) if size.orders else None
    matrices = torch.optim.Muon(model.blocks.parameters(), lr=0.02, weight_decay=0.0)
    rest = torch.optim.AdamW([model.tokens, *model.joined.parameters(), *model.head.parameters()], lr=3e-3, weight_decay=0.0)
    optimizers = [each for each in (tables, matrices, rest) if each is not None]
    runtime = adaptive_rec.wrap(model, **{"optimizer": tables, **size.home})

    def lookups(batch: Batch) -> dict:
        return {f"ngrams.{number}": ids for number, ids in enumerate(batch.ngrams)}

    for batch in runtime.prefetch(batches(steps, size), sparse=lookups):
        loss = loss_of(model, batch)
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        yield loss.item()


def train(steps: int = 300, rule: type[torch.optim.Optimizer] = torch.optim.SparseAdam, size: Size | None = None) -> list[float]:
    size = size or Size()
    torch.manual_seed(size.seed)
    model, times = LanguageModel(size), StepTimes()
    losses = times.of(training(model, size, steps, rule))
    print_facts(model, times)
    print(f"held out: mean loss {held_out_loss(model, size):.4f}")
    return losses


if __name__ == "__main__":
    steps, size = arguments()
    print_losses(train(steps, size=size))
