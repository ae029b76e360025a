"""Import of tables and a dense part that were trained elsewhere into a run that has not started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.checkpoint.foreign import ForeignTensors, names_in_sentence
from adaptive_rec.checkpoint.safetensors_file import BLOCK_BYTES
from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError, did_you_mean

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class ImportedTable:
    """A table that was imported."""

    name: str
    rows: int
    dim: int
    given: str
    """Type of the numbers in the file, by torch's name."""
    kept: str
    """Type of the numbers in the run."""


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    tables: list[ImportedTable]
    fresh: list[str]
    """Tables that are not in the file; they start like those of any run."""
    left_out: list[str]
    """Names in the file that the run does not have."""
    dense_tensors: int
    """Imported tensors of the dense part; 0 where it starts fresh."""
    dense_note: str
    """Prefix of these tensors in the file, or the reason why the dense part starts fresh."""


def import_tensors(
    store: EmbeddingStore,
    model: torch.nn.Module,
    foreign: ForeignTensors,
    partial: bool = False,
    on_table: Callable[[str], None] = lambda name: None,
) -> Imported:
    """Set tables and dense part of a run that has not started; optimizer state is 0. Raises CheckpointError where the file does
    not fit the run, which must not be used then.

    `partial`: permit tables that only the file or only the run has. `on_table` is called with each table before it is read.
    """
    tables, path = store.space.tables, foreign.path
    given, others, unknown = _by_table(tables, foreign)
    missing = [table.name for index, table in enumerate(tables) if index not in given]
    if not given:
        raise CheckpointError(
            f"{path} must hold tables of the run ({names_in_sentence(missing)}) by the keys "
            "embedding_bags.NAME.weight or NAME.weight, got "
            f"{names_in_sentence([*unknown, *others]) or 'nothing'}"
        )
    if unknown and not partial:
        hint = did_you_mean(unknown[0], missing)
        raise CheckpointError(
            f"tables of {path} must be tables of the run, {len(unknown)} are not: {names_in_sentence(unknown)}{hint}; "
            "with --partial they are left out"
        )
    if missing and not partial:
        raise CheckpointError(
            f"{path} must hold every table, {len(missing)} of {len(tables)} are missing: {names_in_sentence(missing)}; "
            "with --partial they start fresh"
        )
    dtype = store.rule.weight_type(store.dtype)
    for index, tensor in given.items():
        _check_table(tables[index], tensor)
    prefix, note = dense_prefix(model, others, partial)
    for index, tensor in given.items():
        on_table(tables[index].name)
        width = store.rule.state_width(tables[index].dim)
        for first, weights_ND in row_blocks(tables[index].name, tensor, dtype):
            store.contents.import_rows(index, first, weights_ND, np.zeros((len(weights_ND), width)))
    taken = {} if prefix is None else set_dense_tensors(model, others, prefix)
    return Imported(
        [
            ImportedTable(table.name, table.rows, table.dim, type_name(given[index].dtype), type_name(dtype))
            for index, table in enumerate(tables)
            if index in given
        ],
        missing,
        [*unknown, *(key for key in others if key not in taken)],
        len(taken),
        note,
    )


def _by_table(
    tables: tuple[TableSpec, ...], foreign: ForeignTensors
) -> tuple[dict[int, Tensor], dict[str, Tensor], list[str]]:
    """Return tensors of tables by number, other tensors, and the names of tables that the run does not have.

    `table-N` is the table of that number; `export` uses this name where a table's own cannot be a file name.
    """
    numbers = {f"table-{index:04d}": index for index in range(len(tables))}
    numbers |= {table.name: index for index, table in enumerate(tables) if not re.fullmatch("table-[0-9]+", table.name)}
    others, named = dict(foreign.others), dict(foreign.tables)
    if not named:  # the state of a ModuleDict of EmbeddingBags
        named = {name: others.pop(f"{name}.weight") for name in numbers if f"{name}.weight" in others}
    given: dict[int, Tensor] = {}
    for name in [name for name in named if name in numbers]:
        index = numbers[name]
        if index in given:
            raise CheckpointError(f"{foreign.path} must have table {tables[index].name!r} once, it is also {name!r}")
        given[index] = named[name]
    return given, others, [name for name in named if name not in numbers]


def row_blocks(name: str, tensor: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the rows of a table in the run's type, block by block, each with the number of its first row. A whole copy might not
    fit in memory."""
    step = max(1, BLOCK_BYTES // max(1, tensor.shape[1] * tensor.itemsize))
    for first in range(0, len(tensor), step):
        given_ND = tensor[first : first + step]
        kept_ND = given_ND.to(dtype).resolve_neg()  # torch.save may keep `-x` as `x` and a flag
        if not bool(kept_ND.isfinite().all()):
            row, column = (~kept_ND.isfinite()).nonzero()[0].tolist()
            raise CheckpointError(
                f"row {first + row} of table {name!r} must hold finite numbers of {type_name(dtype)}, "
                f"got {float(given_ND[row, column])}"
            )
        yield first, as_array(kept_ND)


def _check_table(table: TableSpec, tensor: Tensor) -> None:
    wanted = (table.rows, table.dim)
    if tuple(tensor.shape) != wanted or not is_dense_tensor(tensor) or tensor.dtype not in FLOATS:
        raise CheckpointError(
            f"table {table.name!r} must be of shape {wanted} and of float16, bfloat16, float32 or float64, got "
            f"{describe_tensor(tensor)}"
        )


def dense_prefix(model: torch.nn.Module, others: Mapping[str, Tensor], partial: bool) -> tuple[str | None, str]:
    """Return the prefix of the dense part's names in the file; or None and the reason where it is not there as a whole."""
    wanted = model.state_dict()
    first = next(iter(wanted))
    found = [key.removesuffix(first) for key in others if key == first or key.endswith(f".{first}")]
    whole = [prefix for prefix in found if all(prefix + name in others for name in wanted)]
    if len(whole) > 1:
        raise CheckpointError(f"the file must have the dense part once, got it under {names_in_sentence(whole)}")
    if not whole:
        absent = next(name for name in wanted if (found[0] if found else "") + name not in others)
        return None, f"the file has no tensor {absent!r}, one of the {len(wanted)} of the model"
    for name, tensor in wanted.items():
        got = others[whole[0] + name]
        if got.shape != tensor.shape or not is_dense_tensor(got) or got.dtype not in FLOATS:
            text = f"tensor {name!r} must be of shape {tuple(tensor.shape)} and of floats, got {describe_tensor(got)}"
            if partial:
                return None, text
            raise CheckpointError(f"{text}; with --partial the dense part starts fresh")
    return whole[0], f"as {whole[0]}*" if whole[0] else ""


def set_dense_tensors(model: torch.nn.Module, others: Mapping[str, Tensor], prefix: str) -> set[str]:
    """Set the dense part. Returns the keys of the tensors that were used."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = others[prefix + name].to(tensor.dtype)
        if not bool(tensors[name].isfinite().all()):
            raise CheckpointError(f"tensor {prefix + name!r} must hold finite numbers of {type_name(tensor.dtype)}")
    model.load_state_dict(tensors)
    return {prefix + name for name in tensors}


def is_dense_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is an ordinary dense one in host memory."""
    return tensor.layout == torch.strided and tensor.device.type == "cpu"


def describe_tensor(tensor: Tensor) -> str:
    plain = "" if is_dense_tensor(tensor) else f" ({tensor.layout} on {tensor.device})"
    return f"{tuple(tensor.shape)} of {type_name(tensor.dtype)}{plain}"


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
