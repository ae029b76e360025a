"""Every built-in policy on four streams: `make study-policies`.

Each stream is one comparison (`adaptive-rec compare`, three seeds, nothing else on the machine): the Criteo sample,
MovieTweetings, Globo's clicks, and the synthetic teacher whose popular rows drift. A comparison that was stopped goes on;
what is prepared or finished is not made again.

    python -m benchmarks.policies --data FOLDER [--streams criteo globo movietweetings drifting] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare
from adaptive_rec.policy.find import BUILT_IN
from benchmarks.common.command import data_folder, parser
from benchmarks.staleness.plan import STREAMS as RULES_STREAMS

DRAWN_WITH = 1
"""Seed of Globo's negatives."""


@dataclass(frozen=True)
class Stream:
    preset: str
    file: str
    settings: tuple[str, ...] = ()
    format: str = ""
    """What the file is prepared as; empty: it is read as it is."""


STREAMS = {
    "criteo": Stream("criteo_sample", "criteo_kaggle_sample_137k.tsv.zst"),
    "movietweetings": Stream("movietweetings", "movietweetings_141695.dat.zst", format="movietweetings"),
    "globo": Stream(
        "synthetic",
        "globo_clicks_2988181.csv.zst",
        (*RULES_STREAMS["globo"].settings, "data.train_range=[0.6, 0.7]", "data.test_range=[0.7, 0.71]",
         "run.steps=0", "run.batch_size=1024"),
        format="globo",
    ),
    "drifting": Stream(
        "synthetic",
        "",
        (*RULES_STREAMS["drifting"].settings, "run.steps=0", "run.batch_size=1024", "data.synthetic.samples=1500000",
         "data.synthetic.test_samples=100000", "data.synthetic.drift_ranks=0.2"),
    ),
}  # fmt: skip
"""Globo's clicks and the synthetic stream are those of the study of rules, shorter, in smaller batches, and drifting ten times
as fast: thirty-six runs of each are to take less than an hour."""


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--data", type=Path, default=data_folder(), help="folder of test data")
    line.add_argument("--streams", nargs="*", choices=STREAMS, default=list(STREAMS))
    line.add_argument("--policies", nargs="*", default=list(BUILT_IN))
    line.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    line.add_argument("--out", type=Path, default=Path("studies/policies"))
    args = line.parse_args()
    failed = [name for name in args.streams if compare(args, name)]
    if failed:
        raise SystemExit(f"runs failed: {', '.join(failed)}")


def compare(args: argparse.Namespace, name: str) -> bool:
    """Compare the policies on one stream; returns whether a run failed."""
    stream = STREAMS[name]
    own = [] if not stream.file else ["--data", data_of(args, name)]
    command = [
        sys.executable, "-m", "adaptive_rec", "compare", stream.preset, *own, "--policies", ",".join(args.policies), "--seeds",
        args.seeds, "--out", args.out / name, "--set", "run.seed=1", "--device", "cpu",
        *(part for setting in stream.settings for part in ("--set", setting)),
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run([str(part) for part in command], check=False)
    print(f"{name}: {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    return done.returncode != 0


def data_of(args: argparse.Namespace, name: str) -> Path:
    stream, source = STREAMS[name], args.data / STREAMS[name].file
    if not stream.format:
        return Path(source)
    folder: Path = args.out / f"{name}-data"
    if not folder.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        prepare(Request((source,), folder, format=stream.format, seed=DRAWN_WITH), lambda progress: None)
    return folder


if __name__ == "__main__":
    main()
