"""Sequence models of our own with large tables: a small GPT with hashed n-grams, and a block as in HSTU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.clients.client import Client, ids

WORDS, DIM, SIZE, LENGTH, NGRAM_ROWS = 200, 16, 16, 12, 300
HASHES = {2: 1_000_003, 3: 998_244_353, 4: 754_974_721}
"""Multipliers by the length of an n-gram."""


class NGramGPT(nn.Module):
    """A causal transformer. A token's vector is that of its word, plus those of the 2-, 3- and 4-gram that end there, which are
    hashed to rows of three tables. The output is tied to the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, DIM), nn.Embedding(LENGTH, DIM)
        self.ngrams = nn.ModuleList(nn.Embedding(NGRAM_ROWS, DIM) for _ in HASHES)
        layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, words: Tensor) -> Tensor:
        state = self.words(words) + self.positions.weight[: words.shape[1]]
        for (length, factor), table in zip(HASHES.items(), self.ngrams, strict=True):
            state = state + table(ngram_rows(words, length, factor))
        masked = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.norm(self.blocks(state, masked, is_causal=True)) @ self.words.weight.T


def ngram_rows(words: Tensor, length: int, factor: int) -> Tensor:
    """Return the row of the n-gram that ends at each token; words before the first count as word 0."""
    padded = nn.functional.pad(words, (length - 1, 0))
    code = torch.zeros_like(words)
    for k in range(length):
        code = (code * factor + padded[:, k : k + words.shape[1]]) % 2_147_483_647
    return code % NGRAM_ROWS


class HSTULike(nn.Module):
    """Two blocks of pointwise attention without a softmax, gated, with a bias for each distance (after Zhai et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.distances = nn.Embedding(WORDS, DIM, padding_idx=0), nn.Embedding(LENGTH, 1)
        self.mixes = nn.ModuleList(nn.Linear(DIM, 4 * DIM) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, items: Tensor) -> Tensor:
        state, place = self.items(items), torch.arange(items.shape[1])
        distance = (place[:, None] - place[None, :]).clamp(min=0)
        seen = (place[:, None] >= place[None, :]) & items.ne(0)[:, None, :]
        for mix, out in zip(self.mixes, self.outs, strict=True):
            gate, value, query, key = nn.functional.silu(mix(nn.functional.layer_norm(state, (DIM,)))).chunk(4, -1)
            weights = nn.functional.silu(query @ key.mT + self.distances(distance).squeeze(-1)) / items.shape[1]
            state = state + out(nn.functional.layer_norm((weights * seen) @ value, (DIM,)) * gate)
        return state

    def loss(self, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Sampled softmax: the next item against others."""
        items, following, others = given
        state = self(items)
        right = (state * self.items(following)).sum(-1, keepdim=True)
        wrong = torch.einsum("sld,slnd->sln", state, self.items(others))
        scores = torch.cat([right, wrong], -1).flatten(0, 1)
        return nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def _texts(steps: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(1)
    return [ids(dice, WORDS, SIZE, LENGTH + 1, first=1) for _ in range(steps)]


def _views(steps: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    dice, found = torch.Generator().manual_seed(2), []
    for _ in range(steps):
        items = ids(dice, WORDS, SIZE, LENGTH + 1, first=1)
        items[: SIZE // 2, :3] = 0
        found.append((items[:, :-1], items[:, 1:], ids(dice, WORDS, SIZE, LENGTH, 4, first=1)))
    return found


def _next_word(model: nn.Module, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def clients() -> Iterator[Client]:
    yield Client("Sequence models", "GPT with hashed n-grams", NGramGPT, _texts, _next_word)
    yield Client("Sequence models", "HSTU-like", HSTULike, _views, lambda model, given: model.loss(given))
