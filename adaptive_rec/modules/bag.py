"""``torch.nn.EmbeddingBag`` over a table in two tiers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.gradients import HostRows
from adaptive_rec.modules.inputs import Jagged, bags_of
from adaptive_rec.modules.options import Options, rates_from, setup_from
from adaptive_rec.modules.tiered_module import TieredModule


class AdaptiveEmbeddingBag(TieredModule):
    """Sums or averages bags of rows of one table, with the constructor and the ``forward`` of `torch.nn.EmbeddingBag`.

    With ``optimizer=`` (sgd, adagrad, rowwise_adagrad, lazy_adam; and ``lr=``) the table lies in two tiers, hot rows within
    ``budget=`` on the device, and each distinct row is updated once at the end of each backward pass. The module has no
    parameters then; ``weight`` is a copy of the rows, also in `state_dict`. Adam is lazy: it moves the rows that were looked up,
    with the runtime's steps in the bias correction.

    Without ``optimizer=`` the fused update is off: ``weight`` is an ordinary parameter in host memory, its gradient is sparse
    where ``sparse=True``, and an optimizer of torch updates it.

    Modes are sum and mean; per-sample weights need mode sum, as in torch. Ids outside the table raise DataError.
    """

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
        super().__init__()
        if reason := why_unsupported(mode, max_norm, scale_grad_by_freq):
            raise ConfigError(reason)
        if num_embeddings < 1 or embedding_dim < 1:
            raise ConfigError(f"a table must have rows and a dim of at least 1, got {num_embeddings} x {embedding_dim}")
        if _weight is not None and tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ConfigError(f"_weight must be of shape {(num_embeddings, embedding_dim)}, got {tuple(_weight.shape)}")
        self._set_shape(num_embeddings, embedding_dim, mode, sparse, include_last_offset, padding_idx)
        dtype = dtype or (torch.get_default_dtype() if _weight is None else _weight.dtype)
        place = torch.device(device) if device is not None else torch.get_default_device()
        self.runtime: EmbeddingRuntime | None = None
        if options.get("optimizer") is None:
            self._make_parameter(place, dtype, _weight, options)
            return
        rates, setup = rates_from(options), setup_from(options, place)
        self.runtime = EmbeddingRuntime([TableSpec(name, num_embeddings, embedding_dim)], setup, rates, dtype)
        self._look_up_in(self.runtime, 0, name)
        with torch.no_grad():
            rows = self.runtime.host_rows(0)
            if _weight is not None:
                rows.copy_(_weight)
            else:
                self._init_rows(rows)

    @classmethod
    def of(cls, runtime: EmbeddingRuntime, table: int, like: nn.EmbeddingBag, name: str) -> AdaptiveEmbeddingBag:
        """Make a module that looks a runtime's table up as a torch module did."""
        bag = cls.__new__(cls)
        nn.Module.__init__(bag)
        bag._set_shape(
            like.num_embeddings, like.embedding_dim, like.mode, like.sparse, like.include_last_offset, like.padding_idx
        )
        bag.runtime = runtime
        bag._look_up_in(runtime, table, name)
        return bag.train(like.training)

    def _set_shape(
        self, rows: int, dim: int, mode: str, sparse: bool, include_last_offset: bool, padding_idx: int | None
    ) -> None:
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise ConfigError(f"padding_idx must lie within the table's {rows} rows, got {padding_idx}")
        self.num_embeddings, self.embedding_dim, self.mode, self.sparse = rows, dim, mode, sparse
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % rows

    def _make_parameter(self, place: torch.device, dtype: torch.dtype, weight: Tensor | None, options: Options) -> None:
        """Keep the table as an ordinary parameter."""
        if given := sorted(options.keys() - {"optimizer"}):
            raise ConfigError(
                f"{given[0]} must come with optimizer=: without one all rows stay in host memory as weight"
            )
        if place.type != "cpu" or dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"without optimizer= the table must be on the CPU in float32 or float64, got {place.type} and {dtype}"
            )
        self.weight = nn.Parameter(torch.empty(self.num_embeddings, self.embedding_dim, dtype=dtype))
        with torch.no_grad():
            if weight is not None:
                self.weight.copy_(weight)
            else:
                self._init_rows(self.weight)

    def _init_rows(self, rows: Tensor) -> None:
        """Draw first rows from torch's generator, as `nn.EmbeddingBag` does."""
        nn.init.normal_(rows)
        if self.padding_idx is not None:
            rows[self.padding_idx] = 0

    def _look_up_in(self, runtime: EmbeddingRuntime, table: int, name: str) -> None:
        self._table = table
        self._pooled_table = PoolTables.of(runtime.store.space, [table], [self.mode == "mean"])
        self._unpooled_table = PoolTables.of(runtime.store.space, [table], [False])
        runtime.register(name, self)

    # Forward ---------------------------------------------------------------------------------------------------------

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return pooled vectors (bags, dim). Arguments are those of `torch.nn.EmbeddingBag`; ids have 32 or 64 bits."""
        if per_sample_weights is not None:
            return self._weighted(self._jagged(input, offsets, per_sample_weights))
        if self.runtime is None:
            return self._pool_parameter(self._jagged(input, offsets))
        return self.runtime.pooled(lambda: CallKey.of(self, input, offsets), lambda: [self._bags(input, offsets)])[0]

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        """Yield the bags of an input, or of (input, offsets), for `EmbeddingRuntime.prefetch`."""
        input, offsets = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(input, Tensor) or not isinstance(offsets, Tensor | None):
            got = tuple(type(part).__name__ for part in given) if isinstance(given, tuple) else type(given).__name__
            raise ValueError(f"it must be a tensor of ids, or (ids, offsets), got {got}")
        yield CallKey.of(self, input, offsets), self._bags(input, offsets)

    def _jagged(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None = None) -> Jagged:
        found = bags_of(input, offsets, weights, self.include_last_offset)
        return found if self.padding_idx is None else found.without(self.padding_idx)

    def _bags(self, input: Tensor, offsets: Tensor | None) -> Bags:
        assert self.runtime is not None
        found = self._jagged(input, offsets)
        return self._pooled_table.bags(found.ids_N, found.offsets, self.runtime.dtype)

    def _pool_parameter(self, found: Jagged) -> Tensor:
        weight: Tensor = self.weight
        bags = PoolTables.alone(self.num_embeddings, self.mode == "mean").bags(found.ids_N, found.offsets, weight.dtype)
        pooled: Tensor = HostRows.apply(weight, bags, self.sparse)
        return pooled

    def _weighted(self, found: Jagged) -> Tensor:
        """Pool with weights: each lookup is a bag by itself, and torch sums them with their weights."""
        if self.mode != "sum":
            raise NotImplementedError(f"per_sample_weights must come with mode sum, got mode {self.mode}")
        each, weights_N = np.arange(len(found.ids_N) + 1, dtype=np.int64), found.weights_N
        if self.runtime is None:
            weight: Tensor = self.weight
            bags = PoolTables.alone(self.num_embeddings, False).bags(found.ids_N, each, weight.dtype)
            rows_ND: Tensor = HostRows.apply(weight, bags, self.sparse)
        else:
            single = self._unpooled_table.bags(found.ids_N, each, self.runtime.dtype)
            single = replace(single, samples=len(found.offsets) - 1)
            rows_ND = self.runtime.pooled(None, lambda: [single])[0]
        return weighted_sums(rows_ND, weights_N, torch.from_numpy(found.offsets))

    # Rows in and out -------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and self.__dict__.get("runtime") is not None:
            return self.__dict__["runtime"].table(self._table)
        return super().__getattr__(name)

    def _tables_by_key(self) -> dict[str, int]:
        return {"weight": self._table}

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text + (f", policy={self.runtime.knobs.policy}" if self.runtime is not None else ", fused update off")


def why_unsupported(mode: str, max_norm: float | None, scale_grad_by_freq: bool) -> str:
    """Return why a module with these options is not supported, or nothing."""
    if mode not in ("sum", "mean"):
        return f"mode must be sum or mean, got {mode!r}"
    if max_norm is not None:
        return f"max_norm must be None, as rows are not renormalised, got {max_norm}"
    return "scale_grad_by_freq must be False, as gradients are not scaled, got True" if scale_grad_by_freq else ""


def weighted_sums(rows_ND: Tensor, weights_N: Tensor | None, offsets: Tensor) -> Tensor:
    """Sum bags of vectors with weights, to (bags, D); `offsets` include the end of the last bag."""
    device = rows_ND.device
    numbers = torch.arange(len(rows_ND), device=device)
    weights_N = None if weights_N is None else weights_N.to(device)
    if not len(rows_ND):
        nothing = rows_ND.sum() + (0 if weights_N is None else weights_N.sum())
        return rows_ND.new_zeros((len(offsets) - 1, rows_ND.shape[1])) + nothing
    return embedding_bag(
        numbers, rows_ND, offsets.to(device), mode="sum", per_sample_weights=weights_N, include_last_offset=True
    )
