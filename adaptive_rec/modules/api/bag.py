"""``torch.nn.EmbeddingBag`` and ``torch.nn.Embedding`` over a table in two tiers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack, cast

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.api.options import Options, rates_from, setup_from
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.tensors.optimizer_steps import follow_optimizers
from adaptive_rec.modules.tensors.tiered_module import TieredModule
from adaptive_rec.modules.tensors.weight import TieredWeight
from adaptive_rec.modules.tensors.weight_functions import embedding, embedding_bag, why_unsupported


class AdaptiveEmbeddingBag(TieredModule, nn.EmbeddingBag):
    """Sums or averages bags of rows of one table, with the constructor and the ``forward`` of `torch.nn.EmbeddingBag`.

    With ``optimizer=`` the table lies in two tiers, hot rows within ``budget=`` on the device. A rule's name (sgd, adagrad,
    ...; docs/models.md has all; with ``lr=``) has each distinct row updated once at the end of each backward pass, and moves the
    rows that were looked up. A class of torch.optim, of those that the page names too, leaves that to the ``step()`` of an
    optimizer of this class, which is made with the module's parameters. ``weight`` is a `TieredWeight`.

    Without ``optimizer=`` it is `torch.nn.EmbeddingBag`.

    Modes are sum and mean; per-sample weights need mode sum, as in torch. Ids outside the table raise DataError.
    """

    plain_class = nn.EmbeddingBag

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        name: str = "weight",
        **options: Unpack[Options],
    ) -> None:
        """`name`: the table's name in statistics, in errors and on the dashboard."""
        if reason := why_unsupported(mode, max_norm, scale_grad_by_freq):
            raise ConfigError(reason)
        _check_table(num_embeddings, embedding_dim, padding_idx, _weight, options)
        how: dict[str, Any] = {"mode": mode, "sparse": sparse, "include_last_offset": include_last_offset}
        if is_ordinary_parameter(options):
            how |= {"device": device, "dtype": dtype, "padding_idx": padding_idx, "_weight": _weight}
            nn.EmbeddingBag.__init__(self, num_embeddings, embedding_dim, **how)
            return
        nn.EmbeddingBag.__init__(self, 1, embedding_dim, device="meta", **how)
        self.num_embeddings, self.padding_idx = num_embeddings, _positive(padding_idx, num_embeddings, options)
        self.weight = make_weight(self, (num_embeddings, embedding_dim), _weight, device, dtype, name, options)

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return pooled vectors (bags, D), as `torch.nn.EmbeddingBag` does."""
        weight = self.weight_for(input)
        if weight is None:
            return nn.EmbeddingBag.forward(self, input, offsets, per_sample_weights)
        padding_row: Any = self.padding_idx
        if self.raw_ids is not None:
            input, padding_row = self.rows_of(input, offsets, per_sample_weights), self.padding_row
        return embedding_bag(
            input, weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, padding_row,
        )  # fmt: skip

    @classmethod
    def over(cls, weight: TieredWeight, mode: str) -> AdaptiveEmbeddingBag:
        """Make a module over a weight that exists."""
        made = cls.__new__(cls)
        nn.EmbeddingBag.__init__(made, 1, weight.shape[1], mode=mode, device="meta")
        made.num_embeddings, made.weight = len(weight), cast("nn.Parameter", weight)
        return made

    def extra_repr(self) -> str:
        return nn.EmbeddingBag.extra_repr(self) + policy_repr(self)


class AdaptiveEmbedding(TieredModule, nn.Embedding):
    """Looks up rows of one table by ids of any shape, with the constructor and the ``forward`` of `torch.nn.Embedding`.

    ``optimizer=`` and the other options are those of `AdaptiveEmbeddingBag`; without them it is `torch.nn.Embedding`. Each
    distinct row is updated once a step, however often its id occurs. Rows of ``padding_idx`` are read, and never updated.
    """

    plain_class = nn.Embedding

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        name: str = "weight",
        **options: Unpack[Options],
    ) -> None:
        """`name`: the table's name in statistics, in errors and on the dashboard."""
        if reason := why_unsupported("sum", max_norm, scale_grad_by_freq):
            raise ConfigError(reason)
        _check_table(num_embeddings, embedding_dim, padding_idx, _weight, options)
        if is_ordinary_parameter(options):
            how: dict[str, Any] = {"sparse": sparse, "_weight": _weight, "_freeze": _freeze, "device": device, "dtype": dtype}
            nn.Embedding.__init__(self, num_embeddings, embedding_dim, padding_idx, **how)
            return
        nn.Embedding.__init__(self, 1, embedding_dim, sparse=sparse, device="meta")
        self.num_embeddings, self.padding_idx = num_embeddings, _positive(padding_idx, num_embeddings, options)
        self.weight = make_weight(self, (num_embeddings, embedding_dim), _weight, device, dtype, name, options)
        self.weight.requires_grad_(not _freeze)

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(self, input: Tensor) -> Tensor:
        """Return rows (..., D), as `torch.nn.Embedding` does."""
        weight = self.weight_for(input)
        if weight is None:
            return nn.Embedding.forward(self, input)
        padding_row: Any = self.padding_idx
        if self.raw_ids is not None:
            input, padding_row = self.rows_of(input), self.padding_row
        how = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        return embedding(input, weight, padding_row, *how)

    @classmethod
    def over(cls, weight: TieredWeight) -> AdaptiveEmbedding:
        """Make a module over a weight that exists."""
        made = cls.__new__(cls)
        nn.Embedding.__init__(made, 1, weight.shape[1], device="meta")
        made.num_embeddings, made.weight = len(weight), cast("nn.Parameter", weight)
        return made

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, *torch_s: Any, **options: Any
    ) -> AdaptiveEmbedding:
        """Make a module with given rows (R, D), as `torch.nn.Embedding.from_pretrained` does."""
        if embeddings.dim() != 2:
            raise ConfigError(f"embeddings must have two dimensions, got {embeddings.dim()}")
        rows, dim = embeddings.shape
        return cls(rows, dim, padding_idx, *torch_s, _weight=embeddings, _freeze=freeze, **options)  # type: ignore[misc]

    def extra_repr(self) -> str:
        return nn.Embedding.extra_repr(self) + policy_repr(self)


def is_ordinary_parameter(options: Options) -> bool:
    """Return whether a table is to be an ordinary parameter. Raises ConfigError for options that need tiers."""
    if options.get("optimizer") is not None:
        return False
    if given := sorted(options.keys() - {"optimizer"}):
        raise ConfigError(f"{given[0]} must come with optimizer=: without one all rows stay in host memory as weight")
    return True


def make_weight(
    module: TieredModule,
    shape: tuple[int, int],
    weight: Tensor | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    name: str,
    options: Options,
) -> nn.Parameter:
    """Return the weight of a module with a runtime of its own. Its first rows are `weight`, or drawn as torch draws them; rows of
    raw ids are drawn from the seed and the ids."""
    dtype = dtype or (torch.get_default_dtype() if weight is None else weight.dtype)
    place = torch.device(device) if device is not None else torch.get_default_device()
    padding_idx = cast("int | None", module.padding_idx)
    setup = replace(setup_from(options, place), padded=padding_idx is not None)
    rows = setup.rows_of_table(shape[0])
    runtime = EmbeddingRuntime([TableSpec(name, rows, shape[1])], setup, rates_from(options), dtype)
    runtime.register(name, module)
    follow_optimizers(runtime)
    def fill(rows: Tensor) -> None:
        if weight is not None:
            rows.copy_(weight)
            return
        nn.init.normal_(rows)
        if padding_idx is not None:
            rows[padding_idx] = 0

    if not setup.raw:
        runtime.weights.set_first_rows(0, fill)
    elif setup.padded:
        shared = np.arange(setup.shared_rows)
        runtime.rows.draw(0, shared, shared, rows - 1)  # as in a table without the row of padding
        runtime.rows.finish_draws()  # or they would overwrite rows that are loaded before the first call
        runtime.weights.set_rows(0, np.array([rows - 1]), torch.zeros(1, shape[1]))
    made = TieredWeight(runtime, 0)
    runtime.weights.hold(0, made)
    return cast("nn.Parameter", made)


def policy_repr(module: TieredModule) -> str:
    if module.runtime is None:
        return ""
    return f", policy={module.runtime.knobs.policy}" + (", ids=raw" if module.raw_ids is not None else "")


def _check_table(rows: int, dim: int, padding_idx: int | None, weight: Tensor | None, options: Options) -> None:
    if rows < 1 or dim < 1:
        raise ConfigError(f"a table must have rows and a dim of at least 1, got {rows} x {dim}")
    if options.get("ids") == "raw":
        if weight is not None:
            raise ConfigError("_weight must be None where ids are raw, as rows begin with values drawn for their ids")
        if padding_idx is not None and not -(2**63) <= padding_idx < 2**63:
            raise ConfigError(f"padding_idx must be a whole number of 64 bits, got {padding_idx}")
        return
    if weight is not None and tuple(weight.shape) != (rows, dim):
        raise ConfigError(f"_weight must be of shape {(rows, dim)}, got {tuple(weight.shape)}")
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ConfigError(f"padding_idx must lie within the table's {rows} rows, got {padding_idx}")


def _positive(padding_idx: int | None, rows: int, options: Options) -> int | None:
    """Return the row of padding, counted from the first one; a raw id is itself."""
    return padding_idx if padding_idx is None or options.get("ids") == "raw" else padding_idx % rows
