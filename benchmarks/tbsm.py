"""TBSM on Globo's click sequences: does a model with a history rank what was clicked above what was not, and above popularity?

Rows are those of `data prepare --format globo_sequence`: each click with label 1, and three articles of label 0 drawn evenly from
those that somebody clicked within the hour before. All are scored on the same held-out rows, which follow the training rows in
time:

- *popularity*: the candidate's clicks within the last 1, 6 or 24 hours, or ever; the best of the four is the bar's baseline. Like
  everything in a row they are known before the click, and unlike a model's weights they are up to date for every held-out row
- *dlrm*: a DLRM over the same rows without a history (`--format globo`: the candidate, the click before it, user, context)
- *tbsm*: preset `globo_tbsm`, over the last 20 clicks

Both models train in one pass in order of time under the exact policy `hotline`; the popularity of the last hour is among their
dense features. The dense learning rate of each is chosen with other seeds on ranges that lie as much earlier as the held-out one
is long: those rows are scored that come before it. A run whose summary is on disk is not made again; other ranges of rows have
a place of their own.

    python -m benchmarks.tbsm --data FOLDER --out studies/tbsm --seeds 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare
from adaptive_rec.dense.metrics import auc
from adaptive_rec.recipes.globo import GloboReader
from benchmarks.common.command import data_folder, parser
from benchmarks.common.machine import processor, versions

FILE = "globo_clicks_2988181.csv.zst"
BAR = 0.02
WINDOWS_HOURS = {"1 h": 1.0, "6 h": 6.0, "24 h": 24.0, "ever": 1e9}
TRAIN, TEST = (0.755, 0.775), (0.775, 0.785)
"""Shares of the rows, in order of time."""
RATES = (0.01, 0.02, 0.05)
"""Dense learning rates to choose from."""
CHOSEN_BY = (11, 12)
"""Seeds of the runs that choose."""
DRAWN_WITH = 1
"""Seed of the negatives: all runs have the same rows, and seeds of their own for the weights."""
Shares = tuple[float, float]
"""Where a range of rows begins and ends."""
FORMATS = {"tbsm": "globo_sequence", "dlrm": "globo"}
DLRM = (
    "model.name=dlrm", "model.bottom_mlp=[64, 32]", "model.top_mlp=[64, 32]", "optimizer.embedding_lr=0.05",
)  # fmt: skip


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--data", type=Path, default=data_folder(), help=f"folder of {FILE}")
    line.add_argument("--out", type=Path, default=Path("studies/tbsm"))
    line.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    line.add_argument(
        "--train", type=float, nargs=2, default=TRAIN, metavar=("FROM", "TO"), help="shares of the rows"
    )
    line.add_argument("--test", type=float, nargs=2, default=TEST, metavar=("FROM", "TO"))
    line.add_argument("--threads", type=int, default=1, help="threads of a run")
    args = line.parse_args()
    args.train, args.test = tuple(args.train), tuple(args.test)
    if args.train[0] < args.test[1] - args.test[0]:
        line.error("--train must begin after as many rows as --test has: learning rates are chosen that much earlier")
    print(
        f"seeds 1 to {args.seeds}; rows {args.train} to train on, {args.test} held out; negatives of seed {DRAWN_WITH}"
    )
    for format_ in FORMATS.values():
        prepared(args, format_)
    found: dict[str, Any] = {"popularity": popularity(args)}
    for model in FORMATS:
        rate = chosen_rate(args, model)
        found[model] = [run(args, model, seed, rate, args.train, args.test) for seed in range(1, args.seeds + 1)]
    report(args, found)


def chosen_rate(args: argparse.Namespace, model: str) -> float:
    """The dense learning rate whose runs on earlier rows had the best AUC on average."""
    width = args.test[1] - args.test[0]
    train, scored_on = ((round(first - width, 6), round(last - width, 6)) for first, last in (args.train, args.test))
    aucs = {
        rate: float(np.mean([run(args, model, seed, rate, train, scored_on)["eval"]["auc"] for seed in CHOSEN_BY]))
        for rate in RATES
    }
    best = max(aucs, key=lambda rate: aucs[rate])
    told = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in aucs.items())
    print(f"{model}: dense_lr {best:g} (AUC on rows {scored_on} by rate: {told})", flush=True)
    return best


def prepared(args: argparse.Namespace, format_: str) -> Path:
    """The folder of all rows of the file, made unless it is there."""
    folder: Path = args.out / format_
    if not folder.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"preparing {folder}", flush=True)
        prepare(Request((args.data / FILE,), folder, format=format_, seed=DRAWN_WITH), lambda progress: None)
    return folder


def place(args: argparse.Namespace, train: Shares, test: Shares) -> Path:
    """Where results of these ranges lie."""
    folder: Path = args.out / "-".join(f"{share:g}" for share in (*train, *test))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(
    args: argparse.Namespace, model: str, seed: int, dense_lr: float, train: Shares, test: Shares
) -> dict[str, Any]:
    """Train in a process of its own, unless that was done; returns the run's summary."""
    out = place(args, train, test) / f"{model}-{dense_lr:g}-{seed}"
    if not (out / "summary.json").exists():
        settings = [
            f"data.train_range={list(train)}", f"data.test_range={list(test)}", f"run.threads={args.threads}",
            f"optimizer.dense_lr={dense_lr}", "run.device=cpu", *(DLRM if model == "dlrm" else ()),
        ]  # fmt: skip
        command = [
            sys.executable, "-m", "adaptive_rec", "train", "globo_tbsm", "--data", args.out / FORMATS[model], "--out", out,
            "--seed", seed, "--policy", "hotline", "--no-serve", *(part for one in settings for part in ("--set", one)),
        ]  # fmt: skip
        began = time.monotonic()
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        print(f"{model}, dense_lr {dense_lr:g}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def popularity(args: argparse.Namespace) -> dict[str, float]:
    """AUC of the candidate's clicks before the row's moment, by how long they are remembered."""
    path = place(args, args.train, args.test) / "popularity.json"
    if not path.exists():
        labels_R, scores = score_by_popularity(args.data / FILE, args.test)
        aucs = {name: auc(labels_R, score_R) for name, score_R in scores.items()}
        path.write_text(json.dumps({"samples": len(labels_R), **aucs}, indent=1) + "\n")
    told: dict[str, float] = json.loads(path.read_text())
    return told


def score_by_popularity(
    path: Path, held_out: tuple[float, float]
) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float64]]]:
    """Labels and scores of the rows of a range: those that the prepared folders hold, in their order."""
    reader = GloboReader(path, False, DRAWN_WITH)
    clicks = reader.clicks()
    of_rows, blocks = zip(*reader.walked(clicks), strict=True)
    labels_R = np.concatenate([block.labels_B for block in blocks])
    key_R = np.concatenate([block.values_F[0] for block in blocks]).astype(np.int64)
    part = slice(*(round(share * len(labels_R)) for share in held_out))
    click_R = np.concatenate(of_rows)[part]
    counts = clicks_before(clicks.article_C.astype(np.int64) + 1, clicks.time_ms_C, key_R[part], click_R)
    return labels_R[part], counts


def clicks_before(
    key_C: NDArray[np.int64], time_ms_C: NDArray[np.int64], key_R: NDArray[np.int64], click_R: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """How many of the clicks before click `click_R` were on article `key_R`, for each window."""
    count = len(key_C)
    sorted_C = np.sort(key_C * count + np.arange(count))  # an article's clicks stand together, in order
    end_R = np.searchsorted(sorted_C, key_R * count + click_R)
    counts = {}
    for name, hours in WINDOWS_HOURS.items():
        first_R = np.searchsorted(time_ms_C, time_ms_C[click_R] - int(hours * 3_600_000))
        counts[name] = (end_R - np.searchsorted(sorted_C, key_R * count + first_R)).astype(np.float64)
    return counts


def report(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Print the table and write it, with what it was made of, beside the runs."""
    aucs = dict(found["popularity"])
    samples = int(aucs.pop("samples"))
    best = max(aucs, key=lambda name: aucs[name])
    machine = f"{processor()}, torch {versions()['torch']}"
    lines = [
        f"{samples} held-out rows; {machine}.",
        "",
        "| scored by | AUC | logloss | calibration |",
        "|---|---|---|---|",
    ]
    lines += [f"| clicks of the candidate, {name} | {value:.4f} | | |" for name, value in aucs.items()]
    for model in FORMATS:
        runs = [one["eval"] for one in found[model]]
        assert {one["samples"] for one in runs} == {samples}, "all are scored on the same rows"
        shown = [f"{np.mean([one[key] for one in runs]):.4f}" for key in ("auc", "logloss", "calibration")]
        each = ", ".join(f"{one['auc']:.4f}" for one in runs)
        lines.append(f"| {model}, seeds 1 to {len(runs)} ({each}) | {' | '.join(shown)} |")
    margins = [one["eval"]["auc"] - aucs[best] for one in found["tbsm"]]
    met = "met" if min(margins) >= BAR else "MISSED"
    lines += [
        "",
        f"tbsm above popularity ({best}) by {np.mean(margins):.4f}, at the least {min(margins):.4f}: {met} (bar {BAR})",
    ]
    text = "\n".join(lines) + "\n"
    (place(args, args.train, args.test) / "table.md").write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
