"""Modules of torch that take raw ids, as `unwrap` leaves them: an ordinary weight, and the raw ids that have rows in it.

They need no runtime: ids are looked up by torch's own operations, so they train, move, save and export as modules of torch do. No
id gets a row any more; those without one read rows that they share, as in evaluation before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptive_rec.modules.loop.inputs import check_integers, why_no_raw_ids

MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Steps of the hash by which ids without a row of their own share rows: that of `mix64` in `kernels/synthetic.py`."""


class RawIdRows(nn.Module):
    """Base of `RawIdEmbedding` and `RawIdEmbeddingBag`: finds the rows of raw ids."""

    raw_ids: Tensor
    """Raw ids that have a row of their own, each with its number (K, 2); an entry of state dicts, as of wrapped modules."""
    shared_rows: int
    """The first rows of the weight, which all other ids share."""
    salt: int
    weight: nn.Parameter
    _ids: Tensor
    """The ids in rising order, to be found by bisection."""
    _rows: Tensor
    padding_idx: int | None
    """An id, whose row is the last one."""

    def begin_with(self, raw_ids_K2: Tensor, shared_rows: int, salt: int) -> None:
        """Set the raw ids of the weight's rows."""
        self.shared_rows, self.salt, self.num_embeddings = shared_rows, salt, len(self.weight)
        self.register_buffer("raw_ids", raw_ids_K2)
        self._sort()

    def _sort(self) -> None:
        order_K = torch.argsort(self.raw_ids[:, 0])
        self.register_buffer("_ids", self.raw_ids[order_K, 0].contiguous(), persistent=False)
        self.register_buffer("_rows", self.raw_ids[order_K, 1].contiguous(), persistent=False)

    @property
    def padding_row(self) -> int | None:
        return None if self.padding_idx is None else len(self.weight) - 1

    def row_numbers(self, input: Tensor) -> Tensor:
        """Return the rows of the weight that ids of any shape read. Raises ValueError where they are no integers."""
        check_integers("input", input)
        ids = input.long().contiguous()  # searchsorted warns of ids that lie apart, such as history[:, 0]
        mixed = ids ^ with_sign(self.salt)
        for shift, factor in MIX:
            mixed = (mixed ^ shifted(mixed, shift)) * with_sign(factor)
        rows = shifted(mixed ^ shifted(mixed, 31), 32) % self.shared_rows
        if len(self._ids):
            places = torch.searchsorted(self._ids, ids).clamp(max=len(self._ids) - 1)
            rows = torch.where(self._ids[places] == ids, self._rows[places], rows)
        if self.padding_idx is None:
            return rows
        return torch.where(torch.eq(ids, self.padding_idx), len(self.weight) - 1, rows)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        given = state_dict.get(prefix + "raw_ids")
        if given is not None:
            if wrong := why_no_raw_ids(given, self.shared_rows, len(self.weight) - (self.padding_idx is not None)):
                error_msgs.append(f"{prefix}raw_ids {wrong}")
                return
            self.raw_ids = self.raw_ids.new_empty(given.shape)
        rest = strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        self._sort()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, raw_ids={len(self.raw_ids)}, shared_rows={self.shared_rows}"


class RawIdEmbedding(RawIdRows, nn.Embedding):  # type: ignore[misc]
    """An `nn.Embedding` that takes raw ids."""

    def forward(self, input: Tensor) -> Tensor:
        """Return rows (..., D)."""
        return functional.embedding(self.row_numbers(input), self.weight, self.padding_row, sparse=self.sparse)


class RawIdEmbeddingBag(RawIdRows, nn.EmbeddingBag):  # type: ignore[misc]
    """An `nn.EmbeddingBag` that takes raw ids."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return pooled vectors (bags, D)."""
        return functional.embedding_bag(
            self.row_numbers(input), self.weight, offsets, mode=self.mode, sparse=self.sparse,
            per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset, padding_idx=self.padding_row,
        )  # fmt: skip


def take_raw_ids(module: nn.Module, raw_ids_K2: Tensor, shared_rows: int, salt: int) -> None:
    """Turn an `nn.Embedding` or `nn.EmbeddingBag` over rows of raw ids into one that takes these, in place."""
    module.__class__ = RawIdEmbeddingBag if isinstance(module, nn.EmbeddingBag) else RawIdEmbedding
    assert isinstance(module, RawIdRows)
    module.begin_with(raw_ids_K2.to(module.weight.device), shared_rows, salt)


def with_sign(number: int) -> int:
    """Return a number of 64 bits as torch has it, with a sign."""
    return number - (number >> 63 << 64)


def shifted(ids: Tensor, bits: int) -> Tensor:
    """Return numbers of 64 bits shifted right without their sign."""
    return (ids >> bits) & ((1 << 64 - bits) - 1)
