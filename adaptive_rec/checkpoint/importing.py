"""Tables and a dense part that were trained elsewhere, set in a run that has not begun."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.checkpoint.foreign import Foreign, shown
from adaptive_rec.checkpoint.safetensors_file import BLOCK_BYTES
from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.errors import CheckpointError, did_you_mean

if TYPE_CHECKING:
    from adaptive_rec.runtime.loop import Runtime

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class ImportedTable:
    name: str
    rows: int
    dim: int
    given: str
    """Type of its numbers in the file, as torch calls it."""
    kept: str
    """Type in the run."""


@dataclass(frozen=True)
class Imported:
    """What was set, and what was not."""

    tables: list[ImportedTable]
    fresh: list[str]
    """Tables that the file has not: they start as those of any run."""
    left_out: list[str]
    """Names in the file that mean nothing to the run."""
    dense_tensors: int
    """Of the dense part, 0 where it starts fresh."""
    dense_note: str
    """Where they are in the file, or why it starts fresh."""


def import_tensors(
    runtime: Runtime, foreign: Foreign, partial: bool = False, told: Callable[[str], None] = lambda text: None
) -> Imported:
    """Set tables and dense part of a fresh run; optimizer state begins at 0, as ever. Raises CheckpointError where the file
    and the run do not fit together, and then the run is of no use.

    `partial`: what only one of them has is no error. `told` hears of the table that is read.
    """
    tables, path = runtime.store.space.tables, foreign.path
    given, others, unknown = _by_table(tables, foreign)
    missing = [table.name for index, table in enumerate(tables) if index not in given]
    if not given:
        raise CheckpointError(
            f"{path} must hold tables of the run ({shown(missing)}) by the keys embedding_bags.NAME.weight or NAME.weight, got "
            f"{shown([*unknown, *others]) or 'nothing'}"
        )
    if unknown and not partial:
        hint = did_you_mean(unknown[0], missing)
        raise CheckpointError(
            f"tables of {path} must be tables of the run, {len(unknown)} are not: {shown(unknown)}{hint}; "
            "with --partial they are left out"
        )
    if missing and not partial:
        raise CheckpointError(
            f"{path} must hold every table, {len(missing)} of {len(tables)} are missing: {shown(missing)}; "
            "with --partial they start fresh"
        )
    dtype = runtime.store.rule.weight_type(runtime.store.dtype)
    for index, tensor in given.items():
        _check_table(tables[index], tensor)
    prefix, note = _dense_prefix(runtime.dense.model, others, partial)
    for index, tensor in given.items():
        told(tables[index].name)
        width = runtime.store.rule.state_width(tables[index].dim)
        for first, weights_ND in kept_rows(tables[index].name, tensor, dtype):
            runtime.store.import_rows(index, first, weights_ND, np.zeros((len(weights_ND), width)))
    taken = {} if prefix is None else _set_dense(runtime.dense.model, others, prefix)
    return Imported(
        [_imported(tables[index], given[index], dtype) for index in sorted(given)],
        missing,
        [*unknown, *(key for key in others if key not in taken)],
        len(taken),
        note,
    )


def _by_table(
    tables: tuple[TableSpec, ...], foreign: Foreign
) -> tuple[dict[int, Tensor], dict[str, Tensor], list[str]]:
    """Tensors of tables by their numbers, other tensors, and the names of tables that the run has not.

    `table-N` is the table of that number, as `export` calls those whose names cannot be a file's.
    """
    numbers = {f"table-{index:04d}": index for index in range(len(tables))}
    numbers |= {table.name: index for index, table in enumerate(tables) if not re.fullmatch("table-[0-9]+", table.name)}
    others, named = dict(foreign.others), dict(foreign.tables)
    if not named:  # a ModuleDict of EmbeddingBags by itself
        named = {name: others.pop(f"{name}.weight") for name in numbers if f"{name}.weight" in others}
    given: dict[int, Tensor] = {}
    for name in [name for name in named if name in numbers]:
        index = numbers[name]
        if index in given:
            raise CheckpointError(f"{foreign.path} must have table {tables[index].name!r} once, it is also {name!r}")
        given[index] = named[name]
    return given, others, [name for name in named if name not in numbers]


def kept_rows(name: str, tensor: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows of a table in a file as the run keeps them, some at a time: the number of the first one, and they. A table may take
    most of the memory there is."""
    step = max(1, BLOCK_BYTES // max(1, tensor.shape[1] * tensor.itemsize))
    for first in range(0, len(tensor), step):
        given_ND = tensor[first : first + step]
        kept_ND = given_ND.to(dtype).resolve_neg()  # what torch.save keeps of `-x` may be `x` and a mark
        if not bool(kept_ND.isfinite().all()):
            row, column = (~kept_ND.isfinite()).nonzero()[0].tolist()
            raise CheckpointError(
                f"row {first + row} of table {name!r} must hold finite numbers of {_name(dtype)}, "
                f"got {float(given_ND[row, column])}"
            )
        yield first, as_array(kept_ND)


def _check_table(table: TableSpec, tensor: Tensor) -> None:
    wanted = (table.rows, table.dim)
    if tuple(tensor.shape) != wanted or not _is_plain(tensor) or tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"table {table.name!r} must be of shape {wanted} and of float16, bfloat16, float32 or float64, got "
            f"{_kind(tensor)}"
        )


def _dense_prefix(model: torch.nn.Module, others: Mapping[str, Tensor], partial: bool) -> tuple[str | None, str]:
    """What stands before the names of the dense part in the file; None, and why, where it is not there as a whole."""
    wanted = model.state_dict()
    first = next(iter(wanted))
    found = [key.removesuffix(first) for key in others if key == first or key.endswith(f".{first}")]
    whole = [prefix for prefix in found if all(prefix + name in others for name in wanted)]
    if len(whole) > 1:
        raise CheckpointError(f"the file must have the dense part once, got it under {shown(whole)}")
    if not whole:
        absent = next(name for name in wanted if (found[0] if found else "") + name not in others)
        return None, f"the file has no tensor {absent!r}, one of the {len(wanted)} of the model"
    for name, tensor in wanted.items():
        got = others[whole[0] + name]
        if got.shape != tensor.shape or not _is_plain(got) or got.dtype not in FLOATS:
            text = f"tensor {name!r} must be of shape {tuple(tensor.shape)} and of floats, got {_kind(got)}"
            if partial:
                return None, text
            raise CheckpointError(f"{text}; with --partial the dense part starts fresh")
    return whole[0], f"as {whole[0]}*" if whole[0] else ""


def _set_dense(model: torch.nn.Module, others: Mapping[str, Tensor], prefix: str) -> set[str]:
    """Returns the keys that were taken."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = others[prefix + name].to(tensor.dtype)
        if not bool(tensors[name].isfinite().all()):
            raise CheckpointError(f"tensor {prefix + name!r} must hold finite numbers of {_name(tensor.dtype)}")
    model.load_state_dict(tensors)
    return {prefix + name for name in tensors}


def _imported(table: TableSpec, given: Tensor, kept: torch.dtype) -> ImportedTable:
    return ImportedTable(table.name, table.rows, table.dim, _name(given.dtype), _name(kept))


def _is_plain(tensor: Tensor) -> bool:
    """Whether its numbers lie in memory one beside the other."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu"


def _kind(tensor: Tensor) -> str:
    plain = "" if _is_plain(tensor) else f" ({tensor.layout} on {tensor.device})"
    return f"{tuple(tensor.shape)} of {_name(tensor.dtype)}{plain}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
