"""Quality against memory: ids folded by a hash, numbered as they come, and admitted by the sketch, in tables of the same size.

Each table has the same number of rows at the most; the last four kinds of runs have half as many, shared ones included. Those
that evict have the least popular ids of full tables lose their rows. One pass in the order of time, the last part held out.
Differences to hashing are paired by seed, with 95 % intervals of the mean (t). A second table says which held-out samples they
come from (`raw_id_groups.py`).

    python -m benchmarks.raw_ids
    python -m benchmarks.raw_ids --only movietweetings --seeds 3
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.tree import load_config
from adaptive_rec.runtime.assemble import assemble
from benchmarks import raw_id_groups
from benchmarks.common.command import ROOT, data_folder, facts_of_call, parser
from benchmarks.common.machine import commit, fingerprint, here, versions
from benchmarks.common.results import earlier, say, table_head, write

OUT = ROOT / "studies" / "bench" / "raw_ids"

HASH = "folded by a hash"
EVICTING = "knobs.evict_ratio=0.1"
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36}
"""Student's t of a two-sided 95 % interval, by degrees of freedom."""


@dataclass(frozen=True)
class Stream:
    """A log, the preset that trains on it, and the most rows of a table."""

    file: str
    log: str
    """Its format for `data prepare`; empty: it is read as it is."""
    preset: str
    rows: int
    settings: tuple[str, ...] = ()


STREAMS = {
    "criteo": Stream("criteo_kaggle_sample_137k.tsv.zst", "", "criteo_sample", 10_000),
    "avazu": Stream("avazu_head_9999.csv.zst", "avazu", "clicks_small", 500),
    "globo": Stream(
        "globo_clicks_2988181.csv.zst", "globo", "clicks_small", 4_000,
        ("data.train_range=[0.6, 0.63]", "data.test_range=[0.63, 0.635]", "run.batch_size=512"),
    ),
    "movietweetings": Stream("movietweetings_141695.dat.zst", "movietweetings", "movietweetings", 4_000),
}


def arms(rows: int) -> dict[str, tuple[str, ...]]:
    """Return the settings of each kind of run, in tables of at most so many rows or of half of them."""
    return {
        HASH: (f"data.max_table_rows={rows}",),
        "as they come": (f"data.max_table_rows={rows - 1}", "data.ids=raw"),
        "second lookup": admitted(rows, 2),
        "second lookup, evicting": (*admitted(rows, 2), EVICTING),
        "second lookup, half the rows": admitted(rows // 2, 2),
        "fourth lookup, half the rows": admitted(rows // 2, 4),
        "second lookup, half the rows, evicting": (*admitted(rows // 2, 2), EVICTING),
        "fourth lookup, half the rows, evicting": (*admitted(rows // 2, 4), EVICTING),
    }


def admitted(rows: int, after: int) -> tuple[str, ...]:
    """Return the settings of a run whose ids get a row after some lookups; an eighth of the rows is shared."""
    shared = rows // 8
    own = f"data.max_table_rows={rows - shared}"
    return own, f"data.shared_rows={shared}", "data.ids=raw", f"knobs.admit_after={after}"


def source_of(name: str, stream: Stream, out: Path, data: Path) -> Path:
    """Return the file or the prepared folder that runs read."""
    file, folder = data / stream.file, out / "data" / name
    if not stream.log:
        return file
    if not folder.exists():
        code = "import sys; from adaptive_rec.cli import main; sys.exit(main(sys.argv[1:]))"
        words = ["data", "prepare", str(file), "--format", stream.log, "--out", str(folder)]
        subprocess.run([sys.executable, "-c", code, *words], check=True, cwd=ROOT)
    return folder


def scored(
    stream: Stream, source: Path, settings: tuple[str, ...], seed: int
) -> tuple[dict[str, float], raw_id_groups.Scores]:
    """Train one run. Returns how well it predicts what was held out, and its rows; and how well each of these samples."""
    ids = "data.ids=auto" if stream.log else "data.ids=hash"  # what an arm says comes later
    common = [f"data.source={source}", "data.shuffle=false", "data.epochs=1", f"run.seed={seed}", "run.steps=0", "run.device=cpu"]
    common.append("run.threads=1")  # small models, perhaps on a busy machine
    runtime = assemble(load_config(stream.preset, {}, [*common, ids, *stream.settings, *settings]))
    for _ in runtime.run():
        pass
    found = runtime.evaluate()
    assert found is not None
    quality = {"auc": found.quality.auc, "logloss": found.quality.logloss, "rows": runtime.store.space.rows}
    return quality, raw_id_groups.scores(runtime)


def difference(ours: list[dict[str, float]], theirs: list[dict[str, float]], what: str) -> tuple[float, float]:
    """Return the mean difference over the seeds, and half of its 95 % interval."""
    found = [mine[what] - other[what] for mine, other in zip(ours, theirs, strict=True)]
    if len(found) < 2:
        return found[0], float("nan")
    return statistics.fmean(found), T_95[len(found) - 1] * statistics.stdev(found) / len(found) ** 0.5


def main() -> int:
    parse = parser(__doc__, "benchmarks.raw_ids")
    parse.add_argument("--only", nargs="+", choices=STREAMS, default=list(STREAMS), metavar="STREAM", help=", ".join(STREAMS))
    parse.add_argument(
        "--arms", nargs="+", default=[], metavar="ARM", help="kinds of runs beside hashing; by default all"
    )
    parse.add_argument("--seeds", type=int, default=8, choices=range(1, 9), metavar="N", help="runs of each kind, at most 8")
    parse.add_argument("--data", type=Path, default=data_folder(), help="folder of click logs")
    parse.add_argument("--out", type=Path, default=OUT, help="folder of results")
    args, began = parse.parse_args(), time.perf_counter()
    (args.out / "data").mkdir(parents=True, exist_ok=True)
    about = {"fingerprint": fingerprint("raw_ids"), "here": here()}
    lines = [table_head(["stream", "ids", "rows", "AUC", "difference", "log loss", "difference"])]
    groups = [table_head(raw_id_groups.COLUMNS)]
    for name in args.only:
        stream = STREAMS[name]
        source = source_of(name, stream, args.out, args.data)
        runs: dict[str, list[dict[str, float]]] = {}
        scores_of: dict[str, list[Path]] = {}
        for kind, settings in arms(stream.rows).items():
            if args.arms and kind not in (HASH, *args.arms):
                continue
            for seed in range(1, args.seeds + 1):
                path = args.out / f"{name}-{'-'.join(kind.replace(',', '').split())}-{seed}.json"
                expected: dict[str, Any] = {"settings": list(settings), "seed": seed}
                old = earlier(path, expected, about)
                if old is None:
                    result, scores = scored(stream, source, settings, seed)
                    scores.write(path.with_suffix(".npz"))
                    old = {**expected, "about": about, "result": result}
                    write(path, old)
                scores_of.setdefault(kind, []).append(path.with_suffix(".npz"))
                runs.setdefault(kind, []).append(old["result"])
            mean = {what: float(np.mean([run[what] for run in runs[kind]])) for what in ("auc", "logloss", "rows")}
            cells = [name, kind, f"{mean['rows']:,.0f}"]
            for what in ("auc", "logloss"):
                gain, half = difference(runs[kind], runs[HASH], what)
                cells += [f"{mean[what]:.4f}", "" if kind == HASH else f"{gain:+.4f} ± {half:.4f}"]
            lines.append(f"| {' | '.join(cells)} |")
            say(lines[-1])
        for kind in list(scores_of)[1:]:
            groups += raw_id_groups.rows(name, kind, scores_of[HASH], scores_of[kind])
            say(groups[-1])
    facts = {**facts_of_call("benchmarks.raw_ids", began), "commit": commit(), "versions": versions()}
    write(args.out / "results.json", {"about": facts})
    (args.out / "rows.md").write_text("\n".join([*lines, "", *groups]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
