"""Written arrays are read back bit by bit, by the safetensors library and by ours, without a copy in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.safetensors_file import DTYPES, ArraysFile, write_arrays
from adaptive_rec.errors import CheckpointError

PATTERNS = {"F16": np.int16, "BF16": np.uint16}
"""As the kernels hold rows of 16 bits."""


def bits(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of any bits there are, NaN and infinities among them."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(3)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    size_bytes = dtype.itemsize * int(np.prod(shape))
    return np.frombuffer(rng.bytes(size_bytes), dtype).reshape(shape)


def write(path: Path, arrays: dict[str, NDArray[Any]], types: dict[str, str] | None = None) -> None:
    out = DISK.create(path)
    write_arrays(out, arrays, types)
    out.close()


def same(tensor: torch.Tensor, array: NDArray[Any]) -> bool:
    return (
        tuple(tensor.shape) == array.shape
        and tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == array.tobytes()
    )


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5), (3,), (0, 4), (), (2, 3, 4)], ids=str)
def test_the_library_reads_every_type(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    array = bits(PATTERNS.get(kind, DTYPES[kind]), shape)
    write(tmp_path / "x.safetensors", {"weight": array}, {"weight": kind} if kind in PATTERNS else None)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.get_slice("weight").get_dtype() == kind
        if shape != ():
            assert same(file.get_tensor("weight"), array)
    [(name, tensor)] = load_file(tmp_path / "x.safetensors").items()
    assert name == "weight"
    assert str(tensor.dtype).removeprefix("torch.") == {"F16": "float16", "BF16": "bfloat16"}.get(
        kind, str(DTYPES[kind])
    )
    assert tensor.numel() == 0 or tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == array.tobytes()
    ours = ArraysFile(DISK, tmp_path / "x.safetensors")
    assert ours.arrays["weight"].type == kind
    assert ours.rows("weight").tobytes() == array.tobytes()
    assert ours.rows("weight").shape == shape


def test_arrays_of_several_types_are_aligned_in_one_file(tmp_path: Path) -> None:
    arrays = {f"part/{kind}": bits(PATTERNS.get(kind, DTYPES[kind]), (3, 5)) for kind in DTYPES}
    types = {f"part/{kind}": kind for kind in PATTERNS}
    write(tmp_path / "x.safetensors", arrays, types)
    loaded, ours = load_file(tmp_path / "x.safetensors"), ArraysFile(DISK, tmp_path / "x.safetensors")
    assert set(loaded) == set(arrays) == set(ours.arrays)
    for name, array in arrays.items():
        assert loaded[name].view(torch.uint8).numpy().tobytes() == array.tobytes()
        assert ours.rows(name).tobytes() == array.tobytes()
        assert ours.arrays[name].start_byte % array.itemsize == 0


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(5, 3),
        "b": torch.randn(4).to(torch.bfloat16),
        "c": torch.tensor(3),
        "d": torch.zeros(0, 2),
    }
    save_file(tensors, tmp_path / "x.safetensors", {"made": "elsewhere"})
    ours = ArraysFile(DISK, tmp_path / "x.safetensors")
    assert set(ours.arrays) == set(tensors)
    for name, tensor in tensors.items():
        assert ours.rows(name).shape == tuple(tensor.shape)
        assert (
            tensor.numel() == 0 or ours.rows(name).tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        )


def test_a_file_without_arrays_is_valid(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {})
    assert load_file(tmp_path / "x.safetensors") == {}
    assert ArraysFile(DISK, tmp_path / "x.safetensors").arrays == {}


def test_some_rows_are_read(tmp_path: Path) -> None:
    array = bits(np.float32, (9, 3))
    write(tmp_path / "x.safetensors", {"a": bits(np.float64, (2,)), "weight": array})
    ours = ArraysFile(DISK, tmp_path / "x.safetensors")
    for start, stop in ((0, 9), (2, 5), (5, 5), (7, 20), (0, None)):
        assert ours.rows("weight", start, stop).tobytes() == array[start:stop].tobytes()


@pytest.mark.parametrize("view", ["columns", "every other row", "transposed", "backwards", "fortran"])
def test_arrays_that_are_not_contiguous_are_written_correctly(tmp_path: Path, view: str) -> None:
    whole = bits(np.float32, (1200, 1600))
    array = {
        "columns": whole[:, 3:1500], "every other row": whole[::2], "transposed": whole.T, "backwards": whole[::-1],
        "fortran": np.asfortranarray(whole),
    }[view]  # fmt: skip
    write(tmp_path / "x.safetensors", {"weight": array})
    assert load_file(tmp_path / "x.safetensors")["weight"].numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("array", "given"),
    [
        (np.zeros(3, np.complex64), None),
        (np.zeros(3, ">f4"), None),
        (np.array(["a"]), None),
        (np.array([None]), None),
        (np.zeros(3, np.float32), "BF16"),
        (np.zeros(3, np.uint16), "F8"),
    ],
)
def test_types_that_the_format_lacks_are_refused(tmp_path: Path, array: NDArray[Any], given: str | None) -> None:
    with pytest.raises(CheckpointError, match="array weight must be of a type that safetensors has, got"):
        write(tmp_path / "x.safetensors", {"weight": array}, {"weight": given} if given else None)


class Counting:
    """Takes everything and keeps nothing."""

    size_bytes = 0

    def write(self, data: Any) -> None:
        self.size_bytes += memoryview(data).nbytes

    def sync(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("columns", "most_bytes"), [(64, 1 << 20), (63, 10 << 20)], ids=["in one piece", "in pieces"])
def test_a_large_array_is_not_copied(columns: int, most_bytes: int) -> None:
    table, out = np.zeros((400_000, 64), np.float32), Counting()
    tracemalloc.start()
    try:
        write_arrays(out, {"weight": table[:, :columns]})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.size_bytes > 400_000 * columns * 4
    assert peak_bytes < most_bytes, f"{peak_bytes} bytes beside a table of {table.nbytes}"
