"""How near to the roof of this machine's memory each kernel of a training step works.

    python -m benchmarks.roofline                about two minutes; make roofline
    python -m benchmarks.roofline --rehearse     tiny shapes: whether it all runs, no figure of anything

First the machine: bytes read and written in a row, random rows of 64 to 512 bytes read and changed, with one thread and all, in
huge pages and without. Then gather, update, distinct rows and sketch on batches of Kaggle's and MLPerf's shapes, in turns with
FBGEMM, and parsing of the Criteo sample, in turns with pyarrow: what must move, its time at the roof, the same work with its rows
in the cache, ours, the rival's. Leaves results.json, rows.md and roofline.svg in --out.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from adaptive_rec.system.openmp import wait_briefly

SHAPES_OF = {
    "Kaggle": ("kaggle", ("data.max_table_rows=8000000",), 48),
    "MLPerf multi-hot": ("mlperf", ("data.max_table_rows=500000",), 12),
}
PARSED = "Criteo text"
TINY = {"Kaggle": ("tiny", (), 4), "MLPerf multi-hot": ("tiny_bags", (), 4)}


def main() -> int:
    from benchmarks.common.command import data_folder, parser

    words = parser(__doc__, "benchmarks.roofline")
    words.add_argument("--out", type=Path, help="folder of results (studies/roofline; studies/roofline-rehearsed)")
    words.add_argument("--rounds", type=int, default=30, help="turns of each kernel")
    words.add_argument("--only", choices=[*SHAPES_OF, PARSED], help="kernels on one kind of data")
    words.add_argument("--data", type=Path, default=data_folder(), help="folder of test data, for parsing")
    words.add_argument("--rehearse", action="store_true", help="tiny shapes")
    args = words.parse_args()
    out = args.out or Path("studies/roofline-rehearsed" if args.rehearse else "studies/roofline")
    if not wait_briefly_here():
        return 0
    import numba

    from adaptive_rec.kernels.jit import usable_threads
    from benchmarks.common.command import facts_of_call
    from benchmarks.common.machine import describe
    from benchmarks.common.results import say, write
    from benchmarks.roofline import kernels, machine, parsing, picture

    began = time.monotonic()
    threads = usable_threads(len(os.sched_getaffinity(0)))
    numba.set_num_threads(threads)
    load = os.getloadavg()[0]
    roof = machine.measure(tuple(sorted({1, threads})), 3 if args.rehearse else 7, args.rehearse)
    lines = [*([REHEARSED, ""] if args.rehearse else []), *roof_lines(roof), "", *KERNEL_HEAD]
    for line in lines:
        say(line)
    rows: list[dict[str, Any]] = []
    turns = 3 if args.rehearse else args.rounds

    def take(kernel: kernels.Kernel, label: str) -> None:
        found = kernels.times(kernel, turns)
        medians = {who: found[who]["median"] if who in found else None for who in ("ours", "in cache", "rival")}
        about = {"kernel": kernel.name, "shape": label, "moves": kernel.moves, "roof": kernel.roof_seconds}
        rows.append({**about, **medians, "rival_name": kernel.rival_name})
        lines.append(kernel_line(rows[-1]))
        say(lines[-1])

    for label, (name, settings, batches) in (TINY if args.rehearse else SHAPES_OF).items():
        if args.only not in (None, label):
            continue
        shape = kernels.Shape(name, settings, batches, args.rehearse)
        for kernel in kernels.kernels(shape, roof):
            take(kernel, label)
        shape.store.close()
    criteo = parsing.text(args.data, args.rehearse) if args.only in (None, PARSED) else b""
    if criteo:
        take(parsing.parsing(criteo, roof), PARSED)
    elif args.only in (None, PARSED):
        say(f"no parsing: {args.data / parsing.SAMPLE} does not exist")
    out.mkdir(parents=True, exist_ok=True)
    about = describe("rehearsal" if args.rehearse else "", "roofline")
    write(out / "results.json", {
        **facts_of_call("benchmarks.roofline", began), "about": about, "load": load,
        "sequential": roof.sequential, "rows": roof.rows, "kernels": rows,
    })  # fmt: skip
    (out / "rows.md").write_text("\n".join(lines) + "\n")
    (out / "roofline.svg").write_text(picture.picture(rows))
    say(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after; results in {out}")
    return 0


def wait_briefly_here() -> bool:
    """Start again with OpenMP's threads waiting as our command line sets it, as it is read when the library is loaded."""
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        return True
    wait_briefly(os.environ)
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.roofline", *sys.argv[1:]])


REHEARSED = "Rehearsed on tiny shapes: no figure below is of anything."

KERNEL_HEAD = (
    "| kernel | shape | must move | roof, ms | in cache, ms | ours, ms | roof / ours | rival, ms | rival / ours |",
    "|---|---|---|---|---|---|---|---|---|",
)


def kernel_line(row: dict[str, Any]) -> str:
    def ms(value: float | None) -> str:
        return "" if value is None else f"{1e3 * value:.3f}"

    rival, over = "", ""
    if row["rival"]:
        rival, over = f"{row['rival_name']} {ms(row['rival'])}", f"{row['rival'] / row['ours']:.2f}"
    cells = [row["kernel"], row["shape"], row["moves"], ms(row["roof"]), ms(row["in cache"]), ms(row["ours"])]
    return f"| {' | '.join(cells)} | {row['roof'] / row['ours']:.2f} | {rival} | {over} |"


def roof_lines(roof: Any) -> list[str]:
    lines = ["| threads | read, GB/s | written, GB/s |", "|---|---|---|"]
    for threads, speed in roof.sequential.items():
        lines.append(f"| {threads} | {speed['read'] / 1e9:.1f} | {speed['written'] / 1e9:.1f} |")
    lines += [
        "",
        "| random row | threads | huge pages: read, changed, ns | small pages: read, changed, ns |",
        "|---|---|---|---|",
    ]
    for one in (one for one in roof.rows if one["huge"]):
        other = next(
            o for o in roof.rows if not o["huge"] and (o["bytes"], o["threads"]) == (one["bytes"], one["threads"])
        )
        pairs = [f"{each['read']:.1f}, {each['changed']:.1f}" for each in (one, other)]
        lines.append(f"| {one['bytes']} bytes | {one['threads']} | {pairs[0]} | {pairs[1]} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
