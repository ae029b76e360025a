"""Text of the language model's examples, with the ids of its hashed n-grams: the source of Python's standard library (PSF
license), which lies on each machine that runs this. Tokens are words, spaces and signs; rare ones are spelled in letters."""

from __future__ import annotations

import argparse
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from data import add_home, home_of, is_adaptive
from torch import Tensor

VOCABULARY, LETTERS = 8192, 256
"""Tokens, of which the first are the letters: the bytes of UTF-8."""
PIECES = re.compile(r" ?\w+|\n\s*|[^\w\s]+|\s+")
HELD_OUT = 0.05
"""Share of the text, its end, that is not trained on."""


@dataclass
class Size:
    """The model and its batches. By default as small as a test needs."""

    depth: int = 2
    width: int = 32
    heads: int = 2
    orders: int = 3
    """Tables of n-grams: of 2 tokens, of 3 and so on; 0 for none, in the plain script alone."""
    rows: int = 20_000
    """Rows of each table."""
    dim: int = 16
    sparse: bool = True
    """Whether gradients of tables have looked-up rows alone, which AdamW of torch does not take."""
    sequences: int = 8
    length: int = 32
    """Tokens of a sequence."""
    files: int = 40
    """How many files of the text are read."""
    seed: int = 0
    home: dict[str, Any] = field(default_factory=lambda: {"budget": "512KiB"})
    """Where the rows are: arguments of `adaptive_rec.wrap`."""

    @property
    def raw(self) -> bool:
        """Whether n-grams get rows as they come: they look up their whole hash."""
        return self.home.get("ids") == "raw"


@dataclass
class Batch:
    tokens: Tensor
    """(B, T)"""
    following: Tensor
    """(B, T) The token after each."""
    ngrams: list[Tensor]
    """For each table (B, T): the row of the n-gram that ends at each token."""


@cache
def text(files: int) -> Tensor:
    """Return the tokens (N) of so many files, in the order of their names."""
    found = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    source = [path.read_text(errors="ignore") for path in found if not {"test", "tests", "site-packages"} & {*path.parts}]
    pieces = PIECES.findall("\n".join(source[:files]))
    common = [piece for piece, _ in Counter(pieces).most_common(VOCABULARY - LETTERS)]
    numbers = {piece: [LETTERS + number] for number, piece in enumerate(common)}
    return torch.tensor([token for piece in pieces for token in numbers.get(piece) or piece.encode()])


def rows_of_ngrams(tokens: Tensor, orders: int, rows: int) -> list[Tensor]:
    """Return for each order n, from 2 on, the row (B, T) of the n tokens that end at each of `tokens` (B, T), by their hash; the
    hash itself where `rows` is 0."""
    hashed, found = tokens, []
    for order in range(1, orders + 1):
        earlier = torch.nn.functional.pad(tokens, (order, 0))[:, : tokens.shape[1]]
        hashed = (hashed ^ (hashed >> 29)) * 0x2545F4914F6CDD1D + earlier + 1  # 64 bits, which wrap
        found.append(((hashed ^ (hashed >> 32)) * 0x1B873593 >> 7) % rows if rows else hashed)
    return found


def batches(steps: int, size: Size, held_out: bool = False) -> Iterator[Batch]:
    """Sequences from random places of the text, or of its end that is held out."""
    whole, dice = text(size.files), torch.Generator().manual_seed(size.seed)
    cut = int(len(whole) * (1 - HELD_OUT))
    part = whole[cut:] if held_out else whole[:cut]
    for _ in range(steps):
        begins = torch.randint(len(part) - size.length, (size.sequences, 1), generator=dice)
        taken = part[begins + torch.arange(size.length + 1)]
        tokens = taken[:, :-1].contiguous()
        yield Batch(tokens, taken[:, 1:].contiguous(), rows_of_ngrams(tokens, size.orders, 0 if size.raw else size.rows))


def arguments() -> tuple[int, Size]:
    """Return steps and size as the command line gives them."""
    parser = argparse.ArgumentParser(description="Train a language model with tables of n-grams on Python's own source.")
    parser.add_argument("--steps", type=int, default=300)
    for each in fields(Size):
        if each.type == "int":
            parser.add_argument(f"--{each.name}", type=int, default=each.default)
    add_home(parser)
    given = vars(parser.parse_args())
    for name, value in given.items():
        if isinstance(value, int) and value < (least := 0 if name in ("steps", "orders", "seed") else 1):
            parser.error(f"--{name} must be {least} or more, got {value}")
    if given["width"] % (2 * given["heads"]):
        parser.error(f"--width must be a multiple of twice --heads, got {given['width']} and {given['heads']}")
    steps = given.pop("steps")
    if not given["orders"] and is_adaptive():
        parser.error("--orders must be 1 or more, got 0: a model without tables is trained by ngram_lm_plain.py")
    home = home_of(parser, given, [f"ngrams.{number}" for number in range(given["orders"])])
    return steps, Size(**given, home=home)
