"""What a benchmark runs for a cell of `test_limits.py`: it never ends, and leaves its number so that a test can look for it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    (out / "process").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)
