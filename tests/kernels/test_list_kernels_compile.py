"""The kernels that find lists and places compile without a device: nothing spilled, no atomics on floats."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.kernels.test_cuda_compiles import stack_bytes

triton = pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
targets, compiler = importlib.import_module("triton.backends.compiler"), importlib.import_module("triton.compiler")
lists = importlib.import_module("adaptive_rec.kernels.cuda_lists")
triton_lists = importlib.import_module("adaptive_rec.kernels.triton_lists")

WIDE = {
    "list_counts", "before_N1", "cold_N1", "counts", "order_F", "first_row_F", "rows_F", "features_Q", "end_L1", "ids_N",
    "order_N", "distinct_N",
}  # fmt: skip
CONSTANTS = {"ROWS": lists.LISTED, "BLOCK": lists.LISTED, "BLOCK_F": 32, "BLOCK_C": 32, "CHUNK": lists.CHUNK, "PIECE": 64}
KERNELS = (
    "measure_bags", "list_lookups", "mark_heads", "mark_starts", "number_rows", "list_segments", "bound_pieces", "find_slots",
    "number_cold", "number_cold in place", "count_hot", "sum_hot",
)  # fmt: skip


@pytest.mark.parametrize("capability", [80, 90, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles(name: str, capability: int, tmp_path: Path) -> None:
    kernel = getattr(triton_lists, name.split()[0]).kernel
    known = CONSTANTS | {"IN_PLACE": "in place" in name, "SAMPLES": lists.SUMMED // 32 if name == "sum_hot" else lists.COUNTED}
    constants = {argument: known[argument] for argument in kernel.arg_names if argument in known}
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in triton_lists._COUNTS:
            signature[argument] = "i32"
        else:
            assert argument in triton_lists._INDICES
            signature[argument] = "*i64" if argument in WIDE else "*u1" if argument == "popular_B" else "*i32"
    source = compiler.ASTSource(kernel, signature, constants, {})
    compiled = triton.compile(source, target=targets.GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert not re.findall(r"\b(?:atom|red)\.\S*\.f\d+", compiled.asm["ptx"])
    assert stack_bytes(compiled, tmp_path) == 0
