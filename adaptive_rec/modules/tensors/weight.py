"""The weight of a table in two tiers, as a parameter of PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.errors import ConflictError
from adaptive_rec.modules.loop.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.inputs import INTEGERS, Jagged, as_ids, bags_of
from adaptive_rec.modules.loop.uploads import weighted_sums
from adaptive_rec.modules.tensors.data_parallel import leave_out_tables
from adaptive_rec.modules.tensors.tiered_tensor import TieredTensor, is_whole, not_sent


class AliasState:
    """What the aliases of a weight share (`detach`, `data`) with each other and with their views. They read and write its rows
    until the weight is given other values (``weight.data = ...``); then they go on with those that it had."""

    kept: Tensor | None = None


class TieredWeight(TieredTensor):
    """The weight (R, D) of a table whose rows lie in the tiers of a runtime. It is an `nn.Parameter` without memory of its own.

    `torch.nn.functional.embedding` and ``embedding_bag``, and indexing by rows, read the rows they need; the gradient that they
    leave in ``grad`` has these rows only (`RowGradient`). Any other operation reads the whole table, with a dense gradient. What
    changes the weight in place (``nn.init``, ``copy_``, an assignment to rows) changes the rows in their tiers.

    Copies (``copy.deepcopy``, ``torch.save``) are ordinary parameters.
    """

    runtime: EmbeddingRuntime
    table: int
    handed: AliasState | None = None
    """What an alias shares with others; None of the parameter itself."""
    _handed_out: weakref.ref[AliasState] | None = None
    """What the parameter's aliases share, as long as there are any."""

    @staticmethod
    def __new__(cls, runtime: EmbeddingRuntime, table: int, requires_grad: bool = True) -> TieredWeight:
        leave_out_tables()
        spec = runtime.space.tables[table]
        like = torch.empty((spec.rows, spec.dim), dtype=runtime.tables.weight_dtype, device="meta")
        made = cls.like(like, runtime.device, requires_grad)
        made.runtime, made.table, made._is_param = runtime, table, requires_grad
        return made

    @property
    def source(self) -> TieredWeight:  # type: ignore[override]
        """The rows of its values: its own."""
        return self

    @property
    def name(self) -> str:
        """The table's name in the runtime."""
        return self.runtime.space.tables[self.table].name

    # Lookups ---------------------------------------------------------------------------------------------------------

    def embedding(self, ids: Tensor, padding_idx: int | None = None) -> Tensor:
        """Return the rows (..., D) of ids of any shape. Rows of `padding_idx` get no gradient."""
        vectors = self.runtime.lookups.pooled(
            lambda: self.key(None, padding_idx, ids), lambda: [self.single_bags(ids, padding_idx)], self
        )[0]
        if padding_idx is not None and self.runtime.rows.must_read(padded := ids.reshape(-1) == padding_idx % len(self)):
            row_1D = self.rows(np.array([padding_idx % len(self)]))
            vectors = torch.where(padded.to(vectors.device).unsqueeze(1), row_1D, vectors)
        return vectors.view(*ids.shape, self.shape[1])

    def embedding_bag(
        self,
        input: Tensor,
        offsets: Tensor | None,
        mode: str,
        weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Tensor:
        """Return pooled vectors (bags, D), with the arguments of `torch.nn.functional.embedding_bag`."""
        if weights is None:
            how = mode, include_last_offset, padding_idx
            return self.runtime.lookups.pooled(
                lambda: self.key(how, padding_idx, input, offsets), lambda: [self.bags(input, offsets, *how)], self
            )[0]
        if mode != "sum":
            raise NotImplementedError(f"per_sample_weights must come with mode sum, got mode {mode}")
        found = bags_of(input, offsets, weights, include_last_offset, padding_idx)
        each = np.arange(len(found.ids_N) + 1, dtype=np.int64)
        single = replace(self._number("single", found.ids_N, each), samples=len(found.offsets) - 1)
        rows_ND = self.runtime.lookups.pooled(None, lambda: [single], self)[0]
        return weighted_sums(rows_ND, found.weights_N, torch.from_numpy(found.offsets))

    def key(self, how: Any, padding_idx: int | None, *tensors: Tensor | None) -> CallKey:
        """Return the identity of a lookup, by which it is found if it was made ahead."""
        return CallKey.of((self.table, how, padding_idx), *tensors)

    def single_bags(self, ids: Tensor, padding_idx: int | None = None) -> Bags:
        """Return a bag of one row for each id; bags of `padding_idx` are empty."""
        if ids.dtype not in INTEGERS:
            raise ValueError(f"input must be of torch.int32 or torch.int64, got {ids.dtype}")
        samples = len(ids) if ids.dim() else 1
        ids_N = as_ids(ids.reshape(-1))
        found = Jagged(ids_N, np.arange(len(ids_N) + 1, dtype=np.int64))
        if padding_idx is not None:
            found = found.without(padding_idx % len(self))
        return replace(self._number("single", found.ids_N, found.offsets), samples=samples)

    def bags(
        self, input: Tensor, offsets: Tensor | None, mode: str, include_last_offset: bool, padding_idx: int | None
    ) -> Bags:
        """Return the bags of a lookup."""
        found = bags_of(input, offsets, None, include_last_offset, padding_idx)
        return self._number(mode, found.ids_N, found.offsets)

    def _number(self, mode: str, ids_N: NDArray[np.int64], offsets: NDArray[np.int64]) -> Bags:
        known: dict[str, PoolTables] = self.__dict__.setdefault("_known", {})
        if mode not in known:
            known[mode] = PoolTables.of(self.runtime.space, [self.table], [mode == "mean"])
        return known[mode].bags(ids_N, offsets, self.runtime.dtype)

    # Rows in and out -------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> Tensor | None:
        """The values of an alias whose weight was given others since; None of one that reads the rows."""
        return self.handed.kept if self.handed is not None else None

    @property
    def _aliases(self) -> AliasState | None:
        """What its aliases share; None where there are none."""
        return self._handed_out() if self._handed_out is not None else None

    @property
    def in_tiers(self) -> bool:  # type: ignore[override]
        """Whether its values are the rows in the tiers."""
        return self.kept is None

    @property
    def place(self) -> int:
        """A number that tensors have in common whose values are the same ones."""
        return hash((id(self.runtime), self.table)) if self.kept is None else id(self.kept)

    def whole(self) -> Tensor:
        """Return a copy of the table (R, D)."""
        return self.runtime.weights.table(self.table).to(self.device) if self.kept is None else _plain(self.kept).clone()

    def rows(self, row_N: NDArray[np.int64]) -> Tensor:
        """Return copies of some rows (N, D), without a gradient."""
        with torch.no_grad():
            ids_N = torch.from_numpy(row_N)
            if self.kept is not None:
                return _plain(self.kept)[ids_N]
            return self.runtime.lookups.pooled(None, lambda: [self.single_bags(ids_N)], self)[0].clone()

    def set(self, values: Tensor) -> None:
        """Set all rows."""
        if self.kept is not None:
            self.kept.copy_(values)
        else:
            self.runtime.weights.set_table(self.table, values)

    def set_rows(self, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows, by their numbers; of a row that is given twice the last value counts."""
        if self.kept is not None:
            self.kept[torch.from_numpy(row_N)] = values
        else:
            self.runtime.weights.set_rows(self.table, row_N, values)

    def alias(self) -> TieredTensor:
        """Return a tensor of the same values, as `detach` does."""
        return self.shared()

    def shared(self) -> TieredWeight:
        """Return an alias, through which its views read and write the rows."""
        made = TieredWeight(self.runtime, self.table, requires_grad=False)
        made.handed = self.handed or self._aliases or AliasState()
        if self.handed is None:
            self._handed_out = weakref.ref(made.handed)
        return made

    def replace(self, values: Tensor) -> None:
        """Take other values, as ``weight.data = values`` does in torch. Aliases handed out before keep the former ones."""
        if self.handed is not None:
            self.handed = AliasState()
            self.handed.kept = values.detach()
            return
        handed = self._aliases
        of = values.source if isinstance(values, TieredTensor) and is_whole(values) else None
        again = of.handed if isinstance(of, TieredWeight) and (of.runtime, of.table) == (self.runtime, self.table) else None
        if again is not None and again is handed:
            return
        given = _plain(values)
        if handed is not None:
            handed.kept = self.whole()
        self.runtime.weights.copies[self.table].settle(self._version)
        self.set(given)
        self._handed_out = None
        if again is not None:
            again.kept = None
            self._handed_out = weakref.ref(again)

    def leave(self, rows: Tensor) -> Tensor:
        """Return the rows (R, D) as an ordinary tensor that takes this one's place. Aliases and state dictionaries that were
        handed out have its memory, as in torch."""
        plain = self.runtime.weights.copies[self.table].shared(rows)
        if (handed := self._aliases) is not None:
            handed.kept = plain
        return plain

    # State dictionaries ----------------------------------------------------------------------------------------------

    def copy_for(self, others: Iterable[object]) -> Tensor:
        """Return a copy of the table (R, D) for a state dictionary, which is the same one for all names of the table. `others`:
        the values that the dictionary has so far."""
        copies, version = self.runtime.weights.copies[self.table], self._version
        copy = copies.current_among(others, version)
        if copy is None:
            copies.add(copy := self.whole(), version)
        return copy

    def check_not_outdated(self, given: Tensor, key: str) -> None:
        """Raise ConflictError where a tensor is what a state dictionary held before later steps. The dictionary's other tensors
        are parameters of the model, which have changed with these steps: the two would make a model that never was."""
        copies = self.runtime.weights.copies[self.table]
        if copies.is_outdated(given, self._version) and not torch.equal(given, self.whole()):
            raise ConflictError(
                f"load_state_dict must be given a copy of an earlier state, {key} is what state_dict() returned before later "
                "steps: in torch it would be the live weight, and the dictionary's other tensors are live; keep "
                "copy.deepcopy(model.state_dict())",
                faq="live-state-dict",
            )

    def was_loaded(self, given: Tensor) -> None:
        """Know that the table was loaded from a tensor, which may be the copy of a state dictionary."""
        self.runtime.weights.copies[self.table].loaded(given, self._version)

    # As a parameter --------------------------------------------------------------------------------------------------

    def plain(self) -> Tensor:
        """Return a copy as an ordinary parameter, or an ordinary tensor if it is not a parameter itself."""
        return nn.Parameter(self.whole(), self.requires_grad) if self._is_param else self.whole()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TieredWeight({self.name}: {len(self):,} x {self.shape[1]}, {self.dtype}, {self.device})"


def _plain(value: Tensor) -> Tensor:
    return value.whole() if isinstance(value, TieredTensor) else value


ForkingPickler.register(TieredWeight, not_sent)
