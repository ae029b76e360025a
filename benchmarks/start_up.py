"""Time until a command's first step, or its end, beside another commit's: `python -m benchmarks.start_up ../before`.

Each command is started in turns from this checkout and from the other one, in processes of their own, with compiled kernels at
hand. Of `train` the time ends with the line that reports its first step; `predict` scores 4,000 rows of a file with the model of
a run that the other checkout has trained.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common.command import ROOT, parser

COMMANDS = {
    "train": ["train", "--set", "knobs.report_every=1"],
    "train slipstream": ["train", "--policy", "slipstream", "--set", "knobs.report_every=1"],
    "predict": ["predict", "run", "--data", "new.csv"],
}
Seconds = tuple[float, float]
"""Wall time, processor time of the command's own process."""


def main() -> None:
    line = parser(__doc__, "benchmarks.start_up")
    line.add_argument("before", type=Path, help="a worktree of the other commit")
    line.add_argument("--turns", type=int, default=10)
    line.add_argument("--only", choices=COMMANDS, action="append")
    args = line.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, checkouts = Path(name), (args.before.resolve(), ROOT)
        write_clicks(folder / "ads.csv", 24_000)
        write_clicks(folder / "new.csv", 4_000)
        started(checkouts[0], folder, ["train", "--data", "ads.csv", "--label", "clicked", "--out", "run"], "")
        for command in args.only or COMMANDS:
            turns = [[seconds(checkout, folder, command) for checkout in checkouts] for _ in range(1 + args.turns)]
            print(described(command, turns[1:]), flush=True)  # the first one may compile kernels


def seconds(checkout: Path, folder: Path, command: str) -> Seconds:
    """Return the times of one command."""
    out = folder / ("out.csv" if command == "predict" else "out")
    try:
        return started(checkout, folder, [*COMMANDS[command], "--out", out.name], "" if command == "predict" else "step 1 of")
    finally:
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def started(checkout: Path, folder: Path, words: list[str], line: str) -> Seconds:
    """Start a command and return its times up to the line that begins like this one; to its end where that is empty."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "adaptive_rec", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    shown = []
    for text in process.stdout:
        shown.append(text)
        if line and text.startswith(line):
            break
    else:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if line or process.returncode:
            raise SystemExit(f"{' '.join(words)} of {checkout} ended with {process.returncode}:\n{''.join(shown[-20:])}")
        return time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    took = time.perf_counter() - start
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    process.terminate()
    process.communicate()
    return took, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def described(command: str, turns: list[list[Seconds]]) -> str:
    """Return a line: medians of both checkouts and of their ratios, with the quarters around these."""
    parts = []
    for number, name in enumerate(("wall", "processor")):
        before, after = (statistics.median(turn[which][number] for turn in turns) for which in (0, 1))
        ratios = sorted(turn[1][number] / turn[0][number] for turn in turns)
        low, middle, high = statistics.quantiles(ratios, n=4)
        parts.append(f"{name} {after:.2f} s / {before:.2f} s = {after / before:.3f} (turns {middle:.3f}, {low:.3f}-{high:.3f})")
    return f"{command:17} {'; '.join(parts)}"


def write_clicks(path: Path, rows: int) -> None:
    """Write a file of drawn clicks with six columns."""
    draw = np.random.default_rng(rows)
    columns = [draw.random(rows) < 0.2, *(draw.integers(0, most, rows) for most in (300, 5_000, 900, 24)), draw.random(rows)]
    lines = (f"{int(a)},s{b},u{c},a{d},{e},{f:.3f}" for a, b, c, d, e, f in zip(*columns, strict=True))
    path.write_text("\n".join(["clicked,site,user,ad,hour,price", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
