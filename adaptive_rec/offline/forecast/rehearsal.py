"""A rehearsal of a run with small tables, in a process of its own, which measures all memory but that of the tables.

The memory of the interpreter, the libraries, the heap and the dense part's layers is measured rather than estimated. Tables are
cut to a few megabytes and ids folded into them; model, batches, policy and threads are those of the run. The rehearsal makes a
few steps, saves a checkpoint, scores a batch of held-out samples, and reports its peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import event

from adaptive_rec.config.tree import Config, load_config, to_toml
from adaptive_rec.config.trust import TRUST
from adaptive_rec.config.watch import WatchConfig
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.errors import TrainingError, first_line
from adaptive_rec.live.sidecar_process import own_modules_only
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.memory.parts import WHILE_TRAINING, peak_bytes
from adaptive_rec.memory.plan import MemoryPart, MemoryPlan
from adaptive_rec.memory.rows import COPIES, LOG, TWIN_DENSE, row_parts, row_rule, row_type
from adaptive_rec.offline.forecast.ranking import largest
from adaptive_rec.offline.forecast.sources import Folded
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.openmp import wait_briefly

TABLES_BYTES = 128 << 20
"""Size of all tables together after the cut: their checkpoint still has shards of full size."""

HOT_BYTES = 1 << 20
STEPS, LEAST_STEPS = 16, 6
SECONDS = 8.0
ON_A_CPU = {"device": "cpu", "classify": "auto", "cold_rows": "auto"}
"""Time after which no step starts except the first six, in which the heap reaches its size."""
TIMEOUT_SECONDS = 300.0

START = (
    "from adaptive_rec.system.libraries import ignore_file; ignore_file(); "
    "from adaptive_rec.offline.forecast.rehearsal import carry_out_order; carry_out_order()"
)
"""What the process executes. This module loads Numba, so the first call is not in it."""

REHEARSED = "all else, rehearsed"


@dataclass(frozen=True)
class Rehearsed:
    """The measurements of a rehearsal."""

    bytes: int
    """Peak memory of the process without rows and their records."""
    steps: int
    seconds: float
    compiled: bool = False
    """Whether kernels were compiled during the rehearsal, which later runs do not repeat."""


def rehearse(config: Config, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan of a run on a CPU with measured figures instead of estimated ones.

    Where the run cannot be rehearsed, the plan is unchanged but for a note.
    """
    order = {"config": to_toml(config), "copies_bytes": [p.bytes for p in plan.parts if p.name == COPIES]}
    order["trusted"] = TRUST.words()
    result, why = _rehearse(order)
    if result is not None and result.compiled:
        result, why = _rehearse(order)  # without the memory of the compiler, which runs only once on a machine
    if result is None:
        return replace(plan, notes=[*plan.notes, f"not rehearsed, so all but the rows is an estimate: {why}"])
    return measured(plan, result)


def _rehearse(order: dict[str, Any]) -> tuple[Rehearsed | None, str]:
    """Return what a process of its own reports, or why it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", START], input=json.dumps(order), capture_output=True,
            text=True, timeout=TIMEOUT_SECONDS, env=own_modules_only(), check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return Rehearsed(**json.loads(done.stdout)), ""
        return None, done.stderr.strip().rpartition("\n")[2]
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        return None, first_line(error)


def measured(plan: MemoryPlan, result: Rehearsed) -> MemoryPlan:
    """Return the plan with the measured memory, of which only the dense part's remains a part of its own."""
    known = (*WHILE_TRAINING, TWIN_DENSE, "dense", "scores")
    kept = [part for part in plan.parts if part.of_rows or part.name.startswith(known)]
    dense = sum(part.bytes for part in kept if part.name.startswith("dense"))
    rest = MemoryPart(
        REHEARSED, "host", max(0, result.bytes - dense), "run.batch_size, the widths under model, eval.batch_size"
    )
    note = f"rehearsed on this machine: {result.steps} steps with small tables, a checkpoint, an evaluation's batch"
    return replace(plan, parts=[*kept, rest], notes=[*plan.notes, note])


def step_seconds(config: Config, source: Source) -> float:
    """Return about how many seconds a step takes on a CPU: the median of a few, of the source's own batches with small tables.
    Raises AdaptiveRecError where such a run cannot be made."""
    ended, began, small = list[float](), time.perf_counter(), shorten(config)
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(Path(folder) / "checkpoints", rows=Path(folder) / "rows")
        runtime = assemble(small, fold(small, source), options=options)
        for report in runtime.run():
            if isinstance(report, Snapshot):
                ended.append(time.perf_counter())
                if ended[-1] - began > SECONDS and len(ended) > LEAST_STEPS:
                    runtime.state.stop()
    taken = np.diff(ended)
    if not len(taken):
        raise TrainingError("a step can be timed only beside another one, the data holds one batch")
    return float(np.median(taken[len(taken) // 4 :]))  # the first ones compile


# In the process that rehearses ---------------------------------------------------------------------------------------


def carry_out_order() -> None:
    """Read an order from standard input, carry it out, and print the result as JSON."""
    wait_briefly(os.environ)
    order = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder, TRUST.only(order["trusted"]):
        path = Path(folder) / "config.toml"
        path.write_text(order["config"], encoding="utf-8")
        config = load_config(str(path), {})
        result = run(config, Path(folder) / "checkpoints", order["copies_bytes"])
    print(json.dumps(asdict(result)))


def run(config: Config, folder: Path, copies_bytes: Sequence[int]) -> Rehearsed:
    """Rehearse in this process."""
    with event.install_recorder("numba:compile") as compiling:
        result = _run(config, folder, copies_bytes)
    return replace(result, compiled=bool(compiling.buffer))


def _run(config: Config, folder: Path, copies_bytes: Sequence[int]) -> Rehearsed:
    began = time.perf_counter()
    small, policy = shorten(config), load_policy(config.knobs.policy)
    source = fold(small, open_source(small))
    runtime = assemble(small, source, options=RunOptions(folder, rows=folder.parent / "rows"))
    for _ in runtime.run():
        late = time.perf_counter() - began > SECONDS
        if late and runtime.step_number >= LEAST_STEPS:
            runtime.state.stop()
    copies = [
        np.ones(size, np.uint8) for size in copies_bytes
    ]  # as large as those of the whole run, where its own are not
    for _ in runtime.saving.at_the_end():
        pass
    runtime.evaluate()
    rows = row_parts(small, source, policy, "host")
    # So few steps hardly fill the memory of a log on a disk.
    of_rows = sum(part.bytes for part in rows.parts if part.place == "host" and not part.moment and part.name != LOG)
    rest = peak_bytes() - of_rows - sum(len(copy) for copy in copies)
    return Rehearsed(max(0, rest), runtime.step_number, round(time.perf_counter() - began, 3))


def shorten(config: Config) -> Config:
    """The configuration of a short run that reports on every step; its rows lie in no folder of a run."""
    never = dict.fromkeys(("eval_every_steps", "checkpoint_every_steps", "checkpoint_every_seconds"), 0)
    hot_bytes = min(HOT_BYTES, config.knobs.hot_budget_bytes)
    run_, held_out = config.run, config.eval
    steps = min(STEPS, run_.steps or STEPS)
    samples = min(held_out.batch_size, held_out.max_samples or held_out.batch_size)
    return config.model_copy(
        update={
            "run": run_.model_copy(update={**ON_A_CPU, "steps": steps, "disk": ""}),
            "eval": held_out.model_copy(update={"max_samples": samples}),
            "watch": WatchConfig(),
            "knobs": config.knobs.changed({"hot_budget_bytes": hot_bytes, "report_every": 1, **never}),
        }
    )


def fold(config: Config, source: Source) -> Source:
    """The source with tables of TABLES_BYTES together, or with its own where they are smaller."""
    rule, itemsize = row_rule(config), row_type(config).itemsize

    def tables_bytes(rows: int) -> int:
        return sum(min(table.rows, rows) * rule.bytes_per_row(table.dim, itemsize) for table in source.tables)

    most = max(table.rows for table in source.tables)
    rows = largest(most, lambda rows: tables_bytes(rows) <= TABLES_BYTES)
    return source if rows == most else Folded(source, max(1, rows))
