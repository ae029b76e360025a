"""Where does skipping samples pay on a CPU? `make study-skipping`

    python -m benchmarks.skipping --data FOLDER [--streams settled criteo ...] [--seeds 3] [--jobs 1] [--out FOLDER]
    python -m benchmarks.skipping --report [--out FOLDER]

Each stream is one comparison (`adaptive-rec compare`): policies that skip, and controls that only train on less: samples skipped
at random, fewer samples, a larger batch. Judged is the processor time of the training loop until the final AUC of the run that
skips nothing. A comparison that was stopped goes on; finished runs are not made again. Results: the comparisons with their pages,
skipping.md, skipping.svg.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adaptive_rec.data.prepare.job import Request
from adaptive_rec.data.prepare.prepare import prepare
from benchmarks.common.command import data_folder, parser
from benchmarks.policies import DRAWN_WITH
from benchmarks.skipping.plan import BASELINE, POLICIES, STREAMS, settings, variants
from benchmarks.skipping.report import report


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--data", type=Path, default=data_folder(), help="folder of test data")
    line.add_argument("--streams", nargs="*", choices=STREAMS, default=list(STREAMS))
    line.add_argument("--only", nargs="+", metavar="NAME", help="policies and variants besides the baseline (all)")
    line.add_argument("--seeds", type=int, default=3, help="number of seeds")
    line.add_argument("--first", type=int, default=1, metavar="SEED", help="the first of the seeds")
    line.add_argument("--jobs", type=int, default=1, help="comparisons at a time; their runs have one thread each")
    line.add_argument("--out", type=Path, default=Path("studies/skipping"))
    line.add_argument("--report", action="store_true", help="train nothing, write the report of what is there")
    args = line.parse_args()
    known = {*POLICIES, *(name for stream in STREAMS.values() for name in variants(stream))}
    unknown = [name for name in args.only or () if name not in known]
    if unknown:
        line.error(f"--only must name some of {', '.join(sorted(known))}; got {unknown[0]}")
    failed: list[str] = []
    if not args.report:
        print(f"{', '.join(args.streams)}: seeds {args.first} to {args.first + args.seeds - 1}", flush=True)
        with ThreadPoolExecutor(args.jobs) as pool:
            codes = pool.map(lambda name: compare(args, name), args.streams)
            failed = [name for name, code in zip(args.streams, codes, strict=True) if code]
    print(report(args.out))
    if failed:
        raise SystemExit(f"runs failed: {', '.join(failed)}")


def compare(args: argparse.Namespace, name: str) -> int:
    """Compare on one stream; returns the exit code."""
    stream, began = STREAMS[name], time.monotonic()
    policies = [policy for policy in POLICIES if chosen(args, policy)]
    own = ["--data", data_of(args, name)] if stream.file else []
    more = [f"{variant}: {', '.join(values)}" for variant, values in variants(stream).items() if chosen(args, variant)]
    command = [
        sys.executable, "-m", "adaptive_rec", "compare", stream.preset, *own, "--policies", ",".join(policies),
        "--baseline", BASELINE, *(word for text in more for word in ("--variant", text)), "--seeds", args.seeds,
        "--out", args.out / name, "--set", f"run.seed={args.first}",
        *(word for setting in settings(stream) for word in ("--set", setting)),
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command], check=False)
    print(f"{name}: {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    return done.returncode


def chosen(args: argparse.Namespace, name: str) -> bool:
    return args.only is None or name in (BASELINE, *args.only)


def data_of(args: argparse.Namespace, name: str) -> Path:
    stream, source = STREAMS[name], args.data / STREAMS[name].file
    if not stream.format:
        return Path(source)
    folder: Path = args.out / "data" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        prepare(Request((source,), folder, format=stream.format, seed=DRAWN_WITH), lambda progress: None)
    return folder


if __name__ == "__main__":
    main()
