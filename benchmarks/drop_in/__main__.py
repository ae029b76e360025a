"""Steps a second of a user's training loop with the modules in it, beside `adaptive-rec train` and beside others' tables.

    python -m benchmarks.drop_in                 about ten minutes, 12 GB
    python -m benchmarks.drop_in --all           also with OpenMP's threads waiting as they do by default
    python -m benchmarks.drop_in --rehearse      tiny shapes: whether it all runs, no figure of anything

All train one model on the same batches from the same rows, in turns, in an order drawn for each round; each cell (an update rule,
or multi-hot bags) has a process of its own. Leaves results.json and rows.md in --out. Results that disagree fail a cell, missed
bars do not.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.common.bench import Bench
from benchmarks.common.report import Found, ratio_bar, runs_of
from benchmarks.drop_in import plan

DROP_IN = (plan.WRAPPED, plan.COLLECTION)
SHARE_OF_TRAIN = 0.95


def bars(found: Found) -> list[dict[str, Any]]:
    """Return the throughput of each drop-in as a share of train's, and as a multiple of each rival's."""
    return [
        ratio_bar(f"steps a second of {mine} / {other}, {name}", run, runs[mine], bound, at_least=True)
        for name, runs in ((name, runs_of(found, name)) for name in found)
        for mine in DROP_IN
        if mine in runs
        for other, run in runs.items()
        if other not in (*DROP_IN, plan.IN_LINE)
        for bound in (SHARE_OF_TRAIN if other == plan.TRAIN else 1.0,)
    ]


BENCH = Bench("drop_in", __doc__, plan.QUICK, plan.ALL, plan.rehearsed, bars, lambda _: "drop-in")


if __name__ == "__main__":
    sys.exit(BENCH.main())
