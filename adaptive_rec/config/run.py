"""The settings of a run: seed, device, precision, threads, trackers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from adaptive_rec.config.knobs import MOST_BYTES, Bytes, Frozen, knob

CORES_FOR_CLASSIFYING_AHEAD = 8
"""On fewer cores the dense part keeps all of them busy, and a worker in the background delays it by more time than it saves."""

CLASSIFIED_ON_DEVICE_BAGS = 50_000
"""Bags of a batch (samples times features) from which run.classify=auto is the device. On an H100 with 16 cores batches of 53,248
bags took as long either way with hot rows, and less on the device with all rows there; smaller ones were not measured."""

DEVICE_ONLY_COLD_ROWS = ("direct", "in_place")
"""Ways of cold rows that only a device has."""

MOST_THREADS = 1024
"""Upper bound of numbers of threads: more than any machine has; a larger number is a mistake."""


@dataclass(frozen=True)
class ThreadBudget:
    """Numbers of threads of a run, by task. Reading, staging, writing rows back and tracking have one more each."""

    dense: int
    classify: int
    """0 leaves it to the training thread."""
    copy: int


def processes_here() -> int:
    """Return the number of processes that torchrun has started on this machine for this run; they share its cores."""
    return max(1, _variable("LOCAL_WORLD_SIZE", 1))


def rank_here() -> int:
    """Return the number of this process among those of this machine, from 0 on."""
    return _variable("LOCAL_RANK", 0)


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


class RunConfig(Frozen):
    seed: int = knob(1, "number", "Seed of initialisation, data order, probes and sampling.", ge=0, le=2**63 - 1)
    steps: int = knob(2000, "steps", "Mini-batches to train on; 0 means as many as data.epochs holds.", ge=0)
    batch_size: PositiveInt = knob(512, "samples", "Samples of a mini-batch.")
    device: Literal["auto", "cpu", "cuda"] = knob(
        "auto", "name", "Device of the dense part and the hot rows; auto is CUDA where there is a GPU."
    )
    precision: Literal["float32", "tf32", "bf16", "float64"] = knob(
        "float32",
        "name",
        "tf32 has matrix products of the dense part round their factors to 10 bits (on CUDA); bf16 is autocast of the dense "
        "part; float64 exists to prove parity.",
    )
    row_precision: Literal["float32", "bf16", "fp16"] = knob(
        "float32",
        "name",
        "Storage of embedding rows (float32: as the step computes); 16 bits halve their memory, and rows are rounded "
        "stochastically at each update; optimizer state is not.",
    )
    transport: Literal["exact", "bf16"] = knob(
        "exact",
        "name",
        "How rows and their gradients travel between processes; bf16 rounds them, which halves their bytes and is not exact.",
    )
    whole_tables: bool = knob(
        True,
        "switch",
        "Of several processes, give a table with long bags whole to one of them, where the first batch shows that fewer bytes "
        "travel then, and rows and lookups stay about even; off: the rows of all tables are dealt out. Exact either way, but "
        "rows of 16 bits round otherwise.",
    )
    host_memory: Bytes = knob(
        0,
        "bytes",
        "Host memory of each process for rows with their optimizer state; all others then lie on a disk. 0: all rows lie in "
        "memory. On a CPU a layer that sets it without knobs.hot_budget_bytes gives seven eighths of it to hot rows; on a device "
        "these hold the most popular cold rows.",
        ge=0,
        le=MOST_BYTES,
    )
    disk: str = knob("", "path", "Folder of the rows on the disk; empty: the run's directory.")
    split: Literal["auto", "always", "never"] = knob(
        "auto",
        "name",
        "Run popular samples as a micro-batch of their own; auto times both on the device of one process, and else is never.",
    )
    compile: bool = knob(
        False,
        "switch",
        "On a CPU, compile the dense part with torch.compile before the first step; saves 0 to 3 % of it on DLRM, needs a C++ "
        "compiler.",
    )
    linear: Literal["auto", "torch", "onednn"] = knob(
        "auto",
        "name",
        "What multiplies the matrices of linear layers in float32 on a CPU: torch's BLAS or oneDNN; auto is oneDNN on AMD "
        "processors with AVX-512, of which MKL uses half.",
    )
    on_nan: Literal["stop", "skip_batch"] = knob(
        "stop",
        "name",
        "A step whose losses or gradients are not finite updates nothing: it ends the run, or its batch is left out "
        "(on a CPU; 10 such batches in a row end the run).",
    )
    cuda_graphs: bool = knob(
        True, "switch", "On CUDA, record the dense part once for each size of micro-batch and replay it from then on."
    )
    threads: int = knob(
        0,
        "threads",
        "Threads of the dense part, and of the kernels on a CPU; 0: all cores the process may use.",
        ge=0,
        le=MOST_THREADS,
    )
    classify: Literal["auto", "host", "device"] = knob(
        "auto",
        "name",
        "Where distinct rows, segments and popular samples of batches are found; auto is the device, where there is one, for "
        "batches of 50,000 bags or more (samples times features), unless there are several processes, rows on a disk, or a "
        "policy that skips.",
    )
    cold_rows: Literal["auto", "staged", "direct", "in_place"] = knob(
        "auto",
        "name",
        "On a device, how cold rows get there and back: staged, copied by the host; direct, copied by the device from host "
        "memory, which is locked; or in_place, used there by the kernels of a step. auto copies wide rows directly and stages "
        "others, unless there are several processes or rows on a disk.",
    )
    classify_threads: int = knob(
        0,
        "threads",
        "Threads that classify batches ahead; 0 takes a quarter of the cores, but on a CPU of fewer than 8 leaves it to "
        "the training thread, which then counts lookups, too.",
        ge=0,
        le=MOST_THREADS,
    )
    copy_threads: int = knob(
        0,
        "threads",
        "On a device, threads that copy rows between host memory and staging; 0 takes half of the cores, from 1 to 8.",
        ge=0,
        le=MOST_THREADS,
    )
    track: tuple[str, ...] = Field(
        (),
        description="Trackers that get the run's figures: tensorboard, by entry point, or as package.module:Class.",
        json_schema_extra={"unit": "names"},
        strict=False,
    )

    def classifies_on_device(self, bags: int, skips: bool, ranks: int = 1) -> bool:
        """Return whether the device of a run on one classifies batches of so many bags. `skips`: its policy skips work."""
        if ranks > 1 or self.host_memory:
            return False
        auto = bags >= CLASSIFIED_ON_DEVICE_BAGS and not skips
        return auto if self.classify == "auto" else self.classify == "device"

    def cold_rows_of(self, ranks: int) -> str:
        """Return how cold rows of a device run get there: staged, direct, in place, or auto, which goes by their width."""
        return "staged" if ranks > 1 or self.host_memory else self.cold_rows

    def thread_budget(self, stages_ahead: bool) -> ThreadBudget:
        """Return the configured numbers; those left at 0 follow from the cores this process may use."""
        cores = max(1, len(os.sched_getaffinity(0)) // processes_here())
        quarter, half = max(1, cores // 4), max(1, cores // 2)
        ahead = quarter if stages_ahead or cores >= CORES_FOR_CLASSIFYING_AHEAD else 0
        return ThreadBudget(self.threads or cores, self.classify_threads or ahead, self.copy_threads or min(8, half))

    @model_validator(mode="after")
    def _check_row_precision(self) -> RunConfig:
        if self.precision == "float64" and self.transport != "exact":
            raise ValueError(f"transport must be exact where precision is float64, got {self.transport}")
        return self
