"""Trains through a spike that is planted in the data, without and with a watchdog, and compares the quality at the end.

    python -m benchmarks.spike FOLDER [--seeds 1 2 3] [--rows N]       two CPU minutes a seed

The data is the Criteo sample, in the order of its file, where the folder of test data has it; otherwise `--rows` rows of the same
format that are made up. In the spike every label is flipped and every count is a billion. Runs of each seed:

    clean      the data as it is
    spike      with the spike
    watched    with the spike and a rule that rolls back and leaves out what was trained since the checkpoint
    slower     the same, and each rollback halves the learning rates for 10 steps
    slow on    the same, and each rollback lowers the learning rates for good
    rate only  rolls back and lowers the rates, and leaves nothing out

FOLDER/results.json has the figures. The replay of each run `slower` is compared with it, bit by bit.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.tree import load_config
from adaptive_rec.data.lines import line_blocks
from adaptive_rec.errors import TrainingError
from adaptive_rec.run.training_run import TrainingRun
from benchmarks.common.command import data_folder, facts_of_call, parser

SAMPLE = "criteo_kaggle_sample_137k.tsv.zst"
BATCH = 256
FIRST_STEP, STEPS = 200, 20
"""The steps whose samples are spoilt: after 200 steps, for 20."""
SETTINGS = [
    "run.device=cpu", f"run.batch_size={BATCH}", "run.steps=0", "data.shuffle=false", "checkpoint.every_steps=25",
    "checkpoint.every_seconds=0", "checkpoint.keep=4", "knobs.report_every=5",
]  # fmt: skip
"""In the order of the file, so that the spike comes in one piece."""
CONDITION = "loss > 1.3x its mean of 10"
RULE = f"{CONDITION}: rollback skipping data"
RUNS: dict[str, tuple[bool, str]] = {
    "clean": (False, ""),
    "spike": (True, ""),
    "watched": (True, RULE),
    "slower": (True, f"{RULE} with lr_factor=0.5 for 10 steps"),
    "slow on": (True, f"{RULE} with lr_factor*=0.9"),
    "rate only": (True, f"{CONDITION}: rollback with lr_factor*=0.5"),
}
"""By name: whether the data has the spike, and the rule."""


@dataclass(frozen=True)
class Outcome:
    """A run at its end."""

    seed: int
    run: str
    auc: float
    logloss: float
    rollbacks: int
    left_out: int
    """Samples that were left out by rollbacks."""
    lr_factor: float
    ended: str
    """`finished`, or why the run failed."""


def lines_of_sample(path: Path) -> list[bytes]:
    return [line for block in line_blocks(path) for line in block.splitlines()]


def made_up_lines(rows: int, seed: int = 1) -> list[bytes]:
    """Return rows in Criteo's format whose label depends on four of the columns and one count."""
    random = np.random.default_rng(seed)
    ids = np.minimum(random.zipf(1.2, (rows, 26)), 2000)
    counts = random.geometric(0.1, (rows, 13))
    weights = random.normal(0, 1, (4, 2001))
    logits = weights[np.arange(4), ids[:, :4]].sum(axis=1) + 0.3 * np.log(counts[:, 0]) - 1.5
    labels = random.random(rows) < 1 / (1 + np.exp(-logits))
    return [
        b"%d\t%s\t%s" % (label, b"\t".join(b"%d" % n for n in row), b"\t".join(b"%08x" % each for each in own))
        for label, row, own in zip(labels, counts.tolist(), ids.tolist(), strict=True)
    ]


def spoilt(lines: list[bytes], first: int, count: int) -> Iterator[bytes]:
    """Yield the lines with labels flipped and counts of a billion in `count` of them from the one at `first` on."""
    for number, line in enumerate(lines):
        if first <= number < first + count:
            label, *fields = line.split(b"\t")
            line = b"\t".join([b"1" if label == b"0" else b"0", *[b"1000000000"] * 13, *fields[13:]])
        yield line


def write_data(folder: Path, lines: list[bytes], first: int, count: int) -> None:
    """Write the data as it is, and with `count` spoilt lines from the one at `first` on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clean.tsv").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "spike.tsv").write_bytes(b"\n".join(spoilt(lines, first, count)) + b"\n")


def train(folder: Path, name: str, seed: int, settings: Sequence[str] = (), replay: Path | None = None) -> TrainingRun:
    """Train one of RUNS to its end, in this process; a run that its rule ends stays as it is."""
    has_spike, rule = RUNS[name]
    data = folder / ("spike.tsv" if has_spike else "clean.tsv")
    rules = [
        f"watch.rules={json.dumps([rule] if rule else [])}",
        f"watch.max_rollbacks={20 if 'skipping' in rule else 3}",
    ]
    config = load_config("criteo_sample", {}, [*SETTINGS, f"data.source={data}", f"run.seed={seed}", *rules, *settings])
    out = folder / f"{'again' if replay else name.replace(' ', '-')}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    run = TrainingRun(config, out, replay=replay)
    try:
        for _ in run.events():
            pass
        run.finish()
    except TrainingError as error:
        print(f"{seed:>4}  {name}: {error}")
    return run


def outcome(run: TrainingRun, name: str, seed: int) -> Outcome:
    """Read a run's outcome from its directory."""
    events = [json.loads(line) for line in (run.out / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    changes = [event["details"]["changed"] for event in events if event["kind"] == "knobs"]
    summary = run.out / "summary.json"
    quality = json.loads(summary.read_text())["eval"] if summary.exists() else {"auc": math.nan, "logloss": math.nan}
    return Outcome(
        seed=seed,
        run=name,
        auc=quality["auc"],
        logloss=quality["logloss"],
        rollbacks=kinds.count("rolled_back"),
        left_out=sum(event["details"]["samples"] for event in events if event["kind"] == "left_out"),
        lr_factor=changes[-1]["lr_factor"]["new"] if changes else 1.0,
        ended=kinds[-1],
    )


def replays_alike(folder: Path, run: TrainingRun, name: str, seed: int, settings: Sequence[str] = ()) -> bool:
    """Whether the replay of one of RUNS ends with its bits."""
    again = train(folder, name, seed, settings, replay=run.out)
    stores = run.runtime.store, again.runtime.store
    for table in range(len(stores[0].space.tables)):
        one, other = (store.export_table(table) for store in stores)
        if not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)):
            return False
    return True


def line_of(found: Outcome, clean: Outcome) -> str:
    return (
        f"{found.seed:>4}  {found.run:<10} {found.auc:.4f}  {found.auc - clean.auc:+.4f}  {found.logloss:.4f}  "
        f"{found.rollbacks:>9}  {found.left_out:>8,}  {found.lr_factor:>9.3f}  {found.ended}"
    )


def main() -> None:
    took = parser(__doc__, "benchmarks.spike")
    took.add_argument("folder", type=Path)
    took.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    took.add_argument("--rows", type=int, default=140_000, help="rows that are made up where the sample is absent")
    args, began = took.parse_args(), time.perf_counter()
    sample = data_folder() / SAMPLE
    what, lines = (SAMPLE, lines_of_sample(sample)) if sample.exists() else ("made-up rows", made_up_lines(args.rows))
    write_data(args.folder, lines, FIRST_STEP * BATCH, STEPS * BATCH)
    print(f"{what}: steps {FIRST_STEP + 1} to {FIRST_STEP + STEPS} are spoilt\nrule: {RULE}\n")
    print("seed  run           AUC  to clean logloss  rollbacks  left out  lr_factor  end")
    results: list[dict[str, Any]] = []
    for seed in args.seeds:
        clean, slower = None, None
        for name in RUNS:
            run = train(args.folder, name, seed)
            found = outcome(run, name, seed)
            clean, slower = clean or found, run if name == "slower" else slower
            print(line_of(found, clean), flush=True)
            results.append(asdict(found))
        assert slower is not None
        alike = replays_alike(args.folder, slower, "slower", seed)
        print(f"{seed:>4}  the replay of slower {'is the same, bit by bit' if alike else 'DIFFERS'}", flush=True)
        results.append({"seed": seed, "replay_alike": alike})
    record = {"data": what, "rule": RULE, "runs": results, **facts_of_call("benchmarks.spike", began)}
    (args.folder / "results.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
