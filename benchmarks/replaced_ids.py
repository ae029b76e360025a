"""A stream whose ids are all replaced twice, in tables with rows for a quarter of them: whether ids of now have the rows.

python -m benchmarks.replaced_ids
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.batch import Batch, Position
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Wrapped
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.runtime import assemble as assembling
from adaptive_rec.runtime.run_options import RunOptions

TABLES, IDS, BATCH, GENERATIONS = 4, 20_000, 512, 3
MOST_USED = 0.1
"""The part of a window's ids that it uses most."""


class ReplacedIds(Wrapped):
    """Synthetic samples whose ids are all replaced twice; remembers which ids each batch has."""

    def __init__(self, config: Config, rows: int) -> None:
        super().__init__(SyntheticSource(config))
        self.tables = tuple(replace(table, rows=rows) for table in self._source.tables)
        self._steps = config.run.steps
        self.batches: list[Any] = []

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        for number, batch in enumerate(self._source.train_batches(position, batch_size)):
            generation = number * GENERATIONS // self._steps
            ids_N = batch.ids_N + generation * 10**12
            self.batches.append(ids_N.reshape(-1, TABLES))
            yield replace(batch, ids_N=ids_N)


def trained(rows: int, evict_ratio: float, steps: int, seed: int) -> dict[str, Any]:
    words = [
        "data.ids=raw", f"data.table_rows={[IDS] * TABLES}", f"data.max_table_rows={IDS}", f"run.steps={steps}",
        f"run.seed={seed}", f"run.batch_size={BATCH}", f"data.synthetic.samples={steps * BATCH}", "data.shared_rows=16",
        f"knobs.evict_ratio={evict_ratio}", "knobs.reclassify_every=50", "knobs.sample_ratio=1", "eval.max_samples=1",
        "knobs.hot_budget_bytes=512KiB",
    ]  # fmt: skip
    config = load_config("tiny", {}, words)
    source = ReplacedIds(config, rows)
    before, assembling.open_source = assembling.open_source, lambda config, trains, left_out: RawIds(source, config)  # type: ignore[assignment]
    try:
        runtime = assembling.assemble(config, options=RunOptions(rows=Path(tempfile.mkdtemp())))
    finally:
        assembling.open_source = before
    raw_ids = runtime.state.input.raw_ids
    assert raw_ids is not None
    left: list[tuple[int, set[tuple[int, int]]]] = []
    choose = raw_ids._eviction.choose

    def choosing(*args: Any) -> Any:
        leaving = choose(*args)
        left.append((runtime.step_number, set(zip(leaving.table_L.tolist(), leaving.key_L.tolist(), strict=True))))
        return leaving

    raw_ids._eviction.choose = choosing  # type: ignore[method-assign]
    for _ in runtime.run():
        pass
    totals, counts = runtime.reports.totals(), raw_ids.counts()
    present = sum(len(raw_ids.keys.keys_of(table)[0]) for table in range(TABLES))
    assert present == counts["keys"]
    return {
        "rows": rows, "evict_ratio": evict_ratio, "seed": seed,
        "hot_lookup_ratio": totals["lookups_hot"] / totals["lookups"],
        "loss": totals["loss_sum"] / totals["samples_trained"],
        "shared_lookup_ratio": counts["lookups_shared"] / counts["lookups"],
        "keys": counts["keys"], "evicted": counts["evicted"],
        "evicted_of_most_used": most_used(source.batches, left),
    }  # fmt: skip


def most_used(batches: list[Any], left: list[tuple[int, set[tuple[int, int]]]]) -> int:
    """Return how many ids left at the end of a window that are among those that the next one uses most."""
    found = 0
    for step, names in left:
        uses: Counter[tuple[int, int]] = Counter()
        for ids in batches[step : step + 50]:
            for table in range(TABLES):
                uses.update((table, key) for key in ids[:, table].tolist())
        most = {name for name, _ in uses.most_common(int(MOST_USED * len(uses)))}
        found += len(names & most)
    return found


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--steps", type=int, default=1800)
    parse.add_argument("--seeds", type=int, default=3)
    args = parse.parse_args()
    quarter = GENERATIONS * IDS // 4
    for seed in range(args.seeds):
        for rows, ratio in ((GENERATIONS * IDS, 0.0), (quarter, 0.0), (quarter, 0.25)):
            print(json.dumps(trained(rows, ratio, args.steps, seed)), flush=True)


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
