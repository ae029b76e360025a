"""Train the models of foreign libraries plain and wrapped, in float64, and compare their losses.

    python -m tests.clients                         every library that is installed
    python -m tests.clients torchfm recbole         some libraries
    python -m tests.clients recbole --only LightGCN SASRec
    python -m tests.clients --write                 and write the tables of docs/howto/clients.md

Each library has a process of its own. A client is trained twice from one seed for 20 steps, under Adagrad and under Adam over all
parameters: plain, and with `adaptive_rec.wrap` before the loop. Fails when the losses of one differ.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from benchmarks.common.command import ROOT, parser
from tests.clients.table import clients_page, summary, told

ZOOS = {
    "torchfm": "zoo_torchfm",
    "deepctr": "zoo_deepctr",
    "rechub": "zoo_rechub",
    "recbole": "zoo_recbole",
    "trainers": "zoo_trainers",
    "sequences": "zoo_sequences",
    "torchrec": "zoo_torchrec",
}
PAGE = ROOT / "docs" / "howto" / "clients.md"
SECONDS_A_CLIENT = 180


def main(given: Sequence[str] | None = None) -> int:
    command = parser(__doc__, "tests.clients")
    command.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(ZOOS))
    command.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some models, by name")
    command.add_argument("--write", action="store_true", help=f"write the tables of {PAGE.relative_to(ROOT)}")
    command.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args(given)
    if unknown := set(options.libraries) - ZOOS.keys():
        command.error(f"LIBRARY must be one of {', '.join(ZOOS)}, got {sorted(unknown)[0]}")
    if options.here:
        return _try_here(options.libraries[0], options.only)
    found: list[dict[str, Any]] = []
    for library in options.libraries or list(ZOOS):
        found += _try_library(library, options.only)
    print(summary(found))
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(clients_page(page, found))
    return int(any(one["verdict"] == "differs" for one in found))


def _try_library(library: str, only: Sequence[str]) -> list[dict[str, Any]]:
    """Try a library in a process of its own, print what comes, and return the outcomes."""
    command = [sys.executable, "-m", "tests.clients", library, "--here", *(["--only", *only] if only else [])]
    found = []
    # results go through a file descriptor of their own: libraries print what they like
    reading, writing = os.pipe()
    environment = {**os.environ, "CLIENTS_RESULTS": str(writing), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, pass_fds=[writing], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                found.append(json.loads(line))
                print(told(found[-1]), flush=True)
        assert process.stderr is not None
        error = process.stderr.read().decode(errors="replace")
    if process.returncode:
        last = error.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
        found.append({"library": library, "name": "", "verdict": "differs", "note": last[0]})
        print(f"{library}: {last[0]}")
    return found


def _try_here(library: str, only: Sequence[str]) -> int:
    """Try all clients of a library in this process; write outcomes as lines of JSON."""
    warnings.simplefilter("ignore")
    with os.fdopen(int(os.environ["CLIENTS_RESULTS"]), "w") as results:

        def tell(outcome: dict[str, Any]) -> None:
            print(json.dumps(outcome), file=results, flush=True)

        zoo = importlib.import_module(f"tests.clients.{ZOOS[library]}")
        from tests.clients.client import in_float64
        from tests.clients.trial import OPTIMIZERS, Outcome, try_client

        in_float64()
        try:
            clients = list(zoo.clients())
        except ImportError as error:
            tell({"library": library, "name": "", "verdict": "absent", "note": str(error)})
            return 0
        for client in clients:
            if only and client.name not in only:
                continue
            for rule in OPTIMIZERS:
                outcome = Outcome(client.library, client.name, rule, "differs", note="takes too long")
                with contextlib.suppress(TimeoutError), _limit(SECONDS_A_CLIENT):
                    outcome = try_client(client, rule)
                tell(outcome.as_dict())
    return 0


@contextlib.contextmanager
def _limit(seconds: int) -> Any:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main())
