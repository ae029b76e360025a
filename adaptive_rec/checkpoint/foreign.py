"""Tensors from files of other programs. Files are mapped, so that only the parts in use are read.

No file is trusted: none may run code, lead to another file by a link, or take more memory than its own size.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.safetensors_file import DTYPES, read_header
from adaptive_rec.checkpoint.table_files import KEYS, PART
from adaptive_rec.errors import CheckpointError, UsageError, first_line, is_out_of_memory

BAG = re.compile(r"(?:.*?\.)??embedding_bags\.(.+)\.weight", flags=re.DOTALL)
"""Key of a table in TorchRec, or in a model that contains such a collection."""

SHOWN_NAMES = 8


@dataclass(frozen=True)
class ForeignTensors:
    """Tensors of a file, or of the files of a folder."""

    path: Path
    tables: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    """Tensors whose keys do not mark them as tables."""


def read_foreign(path: Path) -> ForeignTensors:
    """Read a folder of NAME.safetensors or of NAME.npy, a .safetensors file with all tables, or a state_dict of torch.save.

    Raises UsageError for anything else, CheckpointError where a file breaks the rules of its format.
    """
    if path.is_dir():
        return ForeignTensors(path, _read_folder(path), {})
    if not path.is_file():
        raise UsageError(f"FILE must be a file or a folder, {path} is neither")
    if path.suffix == ".npy":
        raise UsageError(f"FILE must be the folder with all tables where each has a .npy file, got {path}")
    read = mapped_tensors if path.suffix == ".safetensors" else _read_torch
    tensors = read(path.resolve())  # the file that the user named may be a link
    found: dict[str, str] = {}
    for key in tensors:
        if bag := BAG.fullmatch(key):
            if bag[1] in found:
                both = names_in_sentence([found[bag[1]], key])
                raise CheckpointError(f"{path} must have table {bag[1][:80]!r} once, got {both}")
            found[bag[1]] = key
    others = tensors.keys() - found.values()
    tables = {name: tensors[key] for name, key in found.items()}
    return ForeignTensors(path, tables, {key: tensors[key] for key in sorted(others)})


def names_in_sentence(names: list[str]) -> str:
    """Return names as printable text, the first ones of many."""
    more = len(names) - SHOWN_NAMES
    text = ", ".join(repr(name[:80]) for name in names[:SHOWN_NAMES])
    return f"{text} and {more} more" if more > 0 else text


def _read_folder(folder: Path) -> dict[str, Tensor]:
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".npy")]
    kinds = {path.suffix for path in paths}
    if len(kinds) != 1:
        got = "both" if kinds else "neither"
        raise UsageError(f"FILE must be a folder of NAME.safetensors or of NAME.npy files, {folder} has {got}")
    tables = {}
    for path in paths:
        if PART.search(path.stem):
            raise UsageError(f"tables must be in one file each to be imported, {folder} has parts: export without a part size")
        if path.name == KEYS:
            raise CheckpointError(f"tables must have rows by number to be imported, {folder} has those of raw ids ({KEYS})")
        if path.is_symlink() or not path.is_file():
            raise CheckpointError(f"{path} must be a regular file, not a link or anything else")
        tables[path.stem] = _read_npy(path) if path.suffix == ".npy" else _read_weight(path)
    return tables


def _read_weight(path: Path) -> Tensor:
    tensors = mapped_tensors(path)
    if set(tensors) != {"weight"}:
        raise CheckpointError(
            f"{path} must have an array weight and no other, got {names_in_sentence(list(tensors)) or 'none'} "
            "(a file of several tables is given by its own path, not by its folder)"
        )
    return tensors["weight"]


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """Map the arrays of a safetensors file. Raises CheckpointError where it breaks the rules of its format."""
    header = read_header(DISK, path)
    whole = np.memmap(path, np.uint8, "r")
    tensors = {}
    for name, stored in header.items():
        part: NDArray[Any] = whole[stored.start_byte : stored.start_byte + stored.size_bytes]
        try:
            tensor = _tensor(part.view(DTYPES[stored.type]).reshape(stored.shape))
        except ValueError:  # no elements, but lengths whose product is too large for NumPy
            raise CheckpointError(
                f"{path}: array {name[:80]!r} must have a possible shape, got {stored.shape}"
            ) from None
        tensors[name] = tensor.view(torch.bfloat16) if stored.type == "BF16" else tensor
    return tensors


def _read_npy(path: Path) -> Tensor:
    try:
        with open(path, "rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):  # later ones may have headers of 4 GiB
                raise ValueError("its format must be version 1.0")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # about headers that Python 2 wrote
            warnings.simplefilter("ignore", ResourceWarning)  # about files of others, which may be freed meanwhile
            return _tensor(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # NumPy evaluates headers as Python literals, which fails in many ways
        raise CheckpointError(
            f"{path} must be a .npy file of numbers: {type(error).__name__}: {first_line(error)}"
        ) from None


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Read a file of torch.save with ``weights_only``; a file that needs more is refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    except Exception:
        raise CheckpointError(
            f"{path} must be a .safetensors file, a folder or a file of torch.save (as it is since torch 1.6), "
            "it is something else or damaged"
        ) from None
    if packed:  # such an entry may grow to any size
        raise CheckpointError(f"{path} must have no compressed parts, got {names_in_sentence(packed)}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Not torch's own message, which advises to read the file unsafely.
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it needs {wanted[1][:80]!r}" if wanted else f"it is damaged ({type(error).__name__})"
        raise CheckpointError(
            f"{path} must hold tensors and nothing else, as torch.load reads them with weights_only: {reason}"
        ) from None
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path} must hold a state_dict, tensors by name, got {type(found).__name__}")
    tensors = {}
    for name, tensor in found.items():
        if not isinstance(name, str) or type(tensor) not in (Tensor, torch.nn.Parameter):
            raise CheckpointError(
                f"{path} must hold a state_dict, tensors by name, got {type(tensor).__name__} by {str(name)[:80]!r} "
                "(save the state_dict alone)"
            )
        tensors[name] = tensor.detach()
    return tensors


def _tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor in the memory of an array, which is not written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
