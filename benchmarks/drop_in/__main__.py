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

from benchmarks.common.bench import Bench
from benchmarks.drop_in import plan

BENCH = Bench("drop_in", __doc__, plan.QUICK, plan.rehearsed, plan.ALL, plan.bars)

if __name__ == "__main__":
    sys.exit(BENCH.main())
