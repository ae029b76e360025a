"""A process that keeps the libraries of a run loaded and forks once for each command line that it reads.

A fork begins with all that is loaded here and shares nothing that it changes: memory, threads and compiled kernels of one command
do not reach the next. GNU's OpenMP does not survive a fork once it has computed, so this process only imports: it must never call
a kernel or an operation of torch. On standard input it reads lines ``{"words": [...], "log": PATH}``; for each it prints the exit
code, negative for a signal. It ends with its input.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

from adaptive_rec.cli import main
from adaptive_rec.system.compiled_code import keep_to_ourselves
from adaptive_rec.system.libraries import ignore_file
from adaptive_rec.system.openmp import wait_briefly

LOADED = ("adaptive_rec.run.training_run", "adaptive_rec.offline.report.run_report")
"""What `train` loads late: all of torch, which takes a second."""


def serve() -> int:
    """Return the exit code of a command in the process of that command; this one ends with 0."""
    wait_briefly(os.environ)
    ignore_file()
    keep_to_ourselves(os.environ)
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each command looks through all of it when it ends, which takes a second
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return execute(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)  # what is frozen would be told on the terminal as leaked, by libraries such as Triton that look at their end


def execute(order: dict[str, Any]) -> int:
    """Execute one command line whose output goes to a log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    for place, opened in enumerate((nothing, log, log)):
        os.dup2(opened, place)
    return main(order["words"])


if __name__ == "__main__":
    sys.exit(serve())
