"""The device kernels compile for the devices they are meant for, without one: no atomics, nothing spilled, wide loads."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive_rec.kernels import update_rules
from adaptive_rec.kernels.record import record_bytes
from adaptive_rec.kernels.update_rules import NAMED_RULES

triton = pytest.importorskip("triton", reason="triton is not installed here (it exists for Linux only)")
targets, compiler = importlib.import_module("triton.backends.compiler"), importlib.import_module("triton.compiler")
cuda = importlib.import_module("adaptive_rec.kernels.cuda")
triton_rows = importlib.import_module("adaptive_rec.kernels.triton_rows")
triton_copies = importlib.import_module("adaptive_rec.kernels.triton_copies")

RULES = [rule.code for rule in NAMED_RULES.values()]
FLAGS = {"mean_F", "active_U", "active_P", "changed_H"}
NUMBERS = {"number_U": "*i64", "step_bits": "*i64", "overflow": "*i32"}
"""What rounds rows of 16 bits by random bits; their state is of the type of sums then."""
WHERE_ROUNDED = ("hot_state", "cold_state")
RECORD = {"record": "*i8", "tails": "*fp32"}
UNMEASURED = {"record": None, "tails": None, "touches_H": None, "changed_H": None}
WARPS = {"gather_pooled": 4, "sum_pieces": 1, "apply_rows": 1, "movement": 4, "copy_rows": 4, "take_rows": 4, "fill_lines": 4}
COPIES = {"take_rows", "fill_lines"}
"""Their pieces of memory begin anywhere."""
COPIED = {"table": "*i64", "dense": "", "labels_B": "", "scale_S": "", "dense_out": "", "labels_out": "", "scale_out": ""}
COUNTS = triton_rows._COUNTS + triton_copies.COUNTS
INDICES = triton_rows._INDICES + triton_copies.INDICES


def kernel_named(name: str) -> Any:
    return (getattr(triton_rows, name, None) or getattr(triton_copies, name)).kernel


def compile_kernel(name: str, dtype: str, dim: int, capability: int, **given: Any) -> Any:
    """As the launcher has it compiled, for rows that are aligned."""
    kernel, sums = kernel_named(name), given.pop("sums", "fp64" if dtype == "fp64" else "fp32")
    rows, block_dim = cuda._block(dim, WARPS[name])
    known = {"D": dim, "ROWS": rows, "BLOCK_D": block_dim, "CHUNK": cuda.CHUNK, "UNIT_BYTES": 4} | given
    rounds = known.pop("rounds", False)
    if not rounds:
        known |= dict.fromkeys(NUMBERS)
    constants = {argument: known[argument] for argument in kernel.arg_names if argument in known}
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif rounds and argument in (*NUMBERS, *WHERE_ROUNDED):
            signature[argument] = NUMBERS.get(argument, f"*{sums}")
        elif argument in RECORD:
            signature[argument] = RECORD[argument]
        elif argument in COUNTS:
            signature[argument] = "i32"
        elif argument in COPIED:
            signature[argument] = COPIED[argument] or f"*{dtype}"
        elif argument in INDICES:
            signature[argument] = "*u1" if argument in FLAGS else "*i32"
        else:
            sum_type = argument == "partial" or (name == "movement" and argument == "out")
            signature[argument] = "*fp64" if argument == "hyper" else f"*{sums if sum_type else dtype}"
    aligned = [
        argument for argument, of in signature.items() if of.startswith("*") and argument not in INDICES
    ]
    attributes = {(kernel.arg_names.index(argument),): [["tt.divisibility", 16]] for argument in aligned}
    source = compiler.ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": WARPS[name], "enable_fp_fusion": cuda._FUSED}
    return triton.compile(source, target=targets.GPUTarget("cuda", capability, 32), options=options)


def stack_bytes(compiled: Any, folder: Path) -> int:
    """What a thread keeps outside its registers, as Triton's own copy of NVIDIA's tool says."""
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("Triton here came without cuobjdump")
    report = subprocess.run([tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True).stdout
    usage = re.search(r"STACK:(\d+) .*LOCAL:(\d+)", report)
    assert usage, report
    return int(usage[1]) + int(usage[2])


CASES = [
    *[("gather_pooled", dtype, 16, 90, {}) for dtype in ("fp32", "fp64", "bf16")],
    *[("sum_pieces", dtype, 16, 90, {"active_P": None}) for dtype in ("fp32", "fp64", "bf16")],
    *[("apply_rows", "fp32", 16, 90, {"RULE": rule}) for rule in RULES],
    *[("apply_rows", dtype, 16, 90, {"RULE": update_rules.LAZY_ADAM, **UNMEASURED}) for dtype in ("fp64", "bf16")],
    *[("apply_rows", dtype, 16, 90, {"RULE": update_rules.SGD, "rounds": True}) for dtype in ("bf16", "fp16")],
    ("apply_rows", "bf16", 16, 90, {"RULE": update_rules.LAZY_ADAM, "rounds": True, "sums": "fp64"}),
    *[(name, "fp32", 128, 80, {"RULE": update_rules.ROWWISE_ADAGRAD}) for name in WARPS],
    ("copy_rows", "fp32", 1, 90, {"to_rows_C": None}),
    *[("take_rows", "fp32", 16, 90, {"UNIT_BYTES": unit}) for unit in (2, 4)],
    ("fill_lines", "fp32", 13, 90, {}),
]
MORE = [
    (name, dtype, dim, capability, {"RULE": rule})
    for name in WARPS
    for dtype in ("fp32", "fp64", "fp16", "bf16")
    for dim in (1, 3, 64, 256)
    for capability in (80, 90)
    for rule in (RULES if name == "apply_rows" else RULES[:1])
] + [
    ("apply_rows", dtype, dim, capability, {"RULE": rule, "rounds": True})
    for dtype in ("fp16", "bf16")
    for dim in (1, 3, 64, 256)
    for capability in (80, 90, 100)
    for rule in RULES
] + [
    (name, dtype, dim, 90, {"RULE": update_rules.LAZY_ADAM, "rounds": name == "apply_rows" and dtype == "bf16"})
    for name in ("gather_pooled", "sum_pieces", "apply_rows", "movement", "copy_rows")
    for dtype in ("fp32", "bf16")
    for dim in (512, 1000, 1024)
]


@pytest.mark.parametrize(
    ("name", "dtype", "dim", "capability", "given"),
    CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE],
)
def test_a_kernel_compiles_without_atomics_or_spills(
    name: str, dtype: str, dim: int, capability: int, given: dict[str, Any], tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:  # fmt: skip
    compiled = compile_kernel(name, dtype, dim, capability, **given)
    assembly = compiled.asm["ptx"]
    assert not re.findall(r"\b(?:atom|red)\.\S*", assembly)
    assert stack_bytes(compiled, tmp_path) == 0
    assert [str(warning.message) for warning in recwarn if "FUSION" in str(warning.message)] == []
    if dim % 16 == 0 and name not in COPIES:
        rows = re.findall(r"ld\.global\S*\.v[248]\.b\d+", assembly)
        assert rows, "rows are loaded 16 bytes at a time"


class NoDevice:
    """What Triton asks its driver before a launch; the launch itself is left out."""

    number = 99  # of a device that no machine has: what is compiled is kept by device

    def get_current_target(self) -> Any:
        return targets.GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """A kernel whose launches end when it is compiled."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return functools.partial(self.kernel.run, grid=grid, warmup=True)


def call_all(samples: int, offset: int) -> None:
    """Every call, for `samples` of everything, with index arrays and flags that begin `offset` items into their memory."""
    none = torch.zeros(samples + 1 + offset, dtype=torch.int32)[offset:]
    flags, hyper = none[:-1] != 0, torch.zeros(5, dtype=torch.float64)
    hot, cold, out = torch.zeros((50, 16)), torch.zeros((samples, 16)), torch.zeros((samples, 3, 16))
    states = torch.zeros((50, 1)), torch.zeros((samples, 1))
    cuda.gather_pooled(none[:-1], none[:3], samples, none, none, none, flags, hot, cold, out)
    cuda.sum_pieces(none, none, samples, none, none, flags, none, out, cold)
    tiers, record = (hot, states[0], cold, states[1]), torch.zeros((50, record_bytes(16)), dtype=torch.int8)
    cuda.apply_rows(update_rules.ROWWISE_ADAGRAD, hyper, none, cold, none[:-1], flags, *tiers, record, none, flags)
    cuda.movement(record[:1].expand(len(cold), -1).contiguous(), cold, torch.zeros((len(cold), 4)))
    cuda.copy_rows(hot, none[:-1], cold, None)
    cuda.take_rows(torch.zeros((samples, 8), dtype=torch.int64), none, none, samples, 4, [])
    labels = torch.zeros(samples + offset)[offset:]
    cuda.fill_lines(none[:-1], cold, labels, labels, cold, labels, labels)


def test_batches_of_any_size_use_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is aligned: one sample, sixteen, and index arrays that begin anywhere are nothing special."""
    driver = importlib.import_module("triton.runtime").driver
    monkeypatch.setattr(driver, "_active", NoDevice())
    kernels = {name: kernel_named(name) for name in WARPS}
    for name, kernel in kernels.items():
        monkeypatch.setattr(triton_rows if hasattr(triton_rows, name) else triton_copies, name, Compiled(kernel))
    for samples, offset in [(1, 0), (16, 1), (37, 3), (160, 0)]:
        call_all(samples, offset)
    made = {name: len(kernel.device_caches[NoDevice.number][0]) for name, kernel in kernels.items()}
    assert made == dict.fromkeys(WARPS, 1)


def test_launchers_use_the_warps_these_tests_use() -> None:
    """And a kernel that changes rows in place has one: see `triton_rows.apply_rows`."""
    source = Path(cuda.__file__).read_text()
    launches = re.findall(r"triton_(?:rows|copies)\.(\w+)\[.*?num_warps=(\d)", source, re.DOTALL)
    assert {name: int(warps) for name, warps in launches} == WARPS
    assert WARPS["apply_rows"] == 1
