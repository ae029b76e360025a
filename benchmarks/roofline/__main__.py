"""How near to the roof of this machine's memory each kernel of a training step works.

    python -m benchmarks.roofline                about two minutes; make roofline
    python -m benchmarks.roofline --rehearse     tiny shapes: whether it all runs, no figure of anything

The first cell measures the machine: bytes read and written in a row, random rows of 64 to 512 bytes read and changed, with one
thread and all, in huge pages and without. Others are gather, update, distinct rows and sketch on batches of Kaggle's and MLPerf's
shapes, in turns with FBGEMM, and parsing of the Criteo sample, in turns with pyarrow: the time at the roof of what must move, the
same work with its rows in the cache, ours, the rival's.
"""

from __future__ import annotations

import sys

from benchmarks.common.bench import Bench
from benchmarks.roofline import plan

PANELS = tuple((cell.name, cell.about) for cell in plan.CELLS[1:])
BENCH = Bench(
    "roofline", __doc__, plan.CELLS, plan.rehearsed,
    picture=("Time of a batch, and of what it must move at the roof of memory", PANELS),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(BENCH.main())
