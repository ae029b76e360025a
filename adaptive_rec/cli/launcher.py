"""``train --processes``: this process has torchrun start the ranks, watches them, and passes signals on.

The first signal stops all ranks after their step, with a checkpoint; the second kills them. A rank that is stopped (SIGSTOP) for
`STOPPED_SECONDS` is killed, at any time, so that torchrun notices.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.output import say
from adaptive_rec.cli.parser import whole_number
from adaptive_rec.errors import FAQ, SUSPENDED, UsageError
from adaptive_rec.live.life import is_suspended

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config

MOST_PROCESSES, MOST_RESTARTS = 1024, 1000

RUN_ID = "adaptive-rec-"
"""How the names begin that torchrun knows our runs by."""

STOPPED_SECONDS = 15.0
POLL_SECONDS = 0.2
CLOSE_SECONDS = 5
"""Time that torchrun gives the other ranks when one has failed, before it kills them."""

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Wanted:
    """Numbers of processes and restarts of a command line."""

    processes: int
    restarts: int

    @staticmethod
    def of(args: argparse.Namespace) -> Wanted:
        """Read the options. Raises UsageError."""
        wanted = Wanted(
            whole_number("--processes", args.processes, 1, MOST_PROCESSES),
            whole_number("--restarts", args.restarts, 0, MOST_RESTARTS),
        )
        if wanted.restarts and wanted.processes == 1:
            raise UsageError(
                f"--restarts starts several processes again: --processes must be at least 2 with it, got {wanted.processes}"
            )
        if wanted.restarts and args.replay:
            raise UsageError("--replay repeats a run in one go and --restarts begins in the middle of one; give one of them")
        return wanted


def launch(words: list[str], wanted: Wanted, config: Config, out: Path) -> int:
    """Start the same command line in several processes of this machine by torchrun. Returns their exit code at their end."""
    from adaptive_rec.live.sidecar_process import own_modules_only
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.runtime.assemble import check_group

    check_group(config, load_policy(config.knobs.policy), wanted.processes)
    os.environ.update(own_modules_only())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // wanted.processes)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a restart finds the addresses of the processes before it
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(CLOSE_SECONDS))
    code = Launcher(words, wanted).run()
    return SUSPENDED if code == 0 and is_suspended(out / "events.jsonl") else code


class Launcher:
    """The ranks of a run on this machine. torchrun's agent runs on a thread, so that signals are handled here."""

    def __init__(self, words: list[str], wanted: Wanted) -> None:
        self._words, self._wanted = words, wanted
        self._signal = 0
        """The signal that stops the run, 0: none came."""
        self._code = 1
        self._restarts = 0
        self._ranks: dict[int, int] = {}
        """The process of each rank since all were started."""
        self._ends: list[str] = []
        """How ranks have ended since then, in order."""
        self._stopped_since: dict[int, float] = {}

    def run(self) -> int:
        logging.disable(logging.CRITICAL)  # what torchrun says is said here
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in handled}
        agent = threading.Thread(target=self._train, name="torchrun")
        agent.start()
        while agent.is_alive():
            agent.join(POLL_SECONDS)
            self._look()
        for number, handler in before.items():
            signal.signal(number, handler)
        return 128 + self._signal if self._signal else self._code

    def _train(self) -> None:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        settings = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=self._wanted.processes, run_id=f"{RUN_ID}{uuid.uuid4().hex}",
            max_restarts=self._wanted.restarts, monitor_interval=2 * POLL_SECONDS, rdzv_backend="c10d", rdzv_endpoint=f"{HERE}:0",
            local_addr=HERE,
        )  # fmt: skip
        try:
            elastic_launch(settings, sys.executable)("-m", "adaptive_rec", *self._words)
            self._code = 0
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            self._code = max(1, int(failure.exitcode))
            first = self._first_end()
            # torchrun ends the others by SIGTERM, and may have taken the status of the rank that failed before it was noted
            is_known = "exit code" in first or ("SIGTERM" in first and failure.exitcode > 0)
            if self._ends and not self._signal and not is_known:
                self._code = 1
                say(f"error: {first}, and all others with it (see {FAQ}#rank-ended)", sys.stderr)

    def _handle(self, number: int, _frame: object) -> None:
        second, self._signal = self._signal, number
        for process in ranks_of_this_machine().values():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL if second else signal.SIGTERM)
        if second:
            os._exit(128 + number)

    def _look(self) -> None:
        """Watch ranks from their start on, and report a restart: a rank has another process than before."""
        now = ranks_of_this_machine()
        self._kill_stopped(now)
        if any(self._ranks.get(rank, process) != process for rank, process in now.items()):
            self._restarts += 1
            again = f"{self._wanted.processes} ranks start again from the newest checkpoint"
            if not self._signal:
                say(f"{self._first_end()}; {again} (restart {self._restarts} of {self._wanted.restarts})", sys.stderr)
            self._ranks, self._ends = {}, []
        for rank, process in now.items():
            if rank not in self._ranks:
                self._ranks[rank] = process
                threading.Thread(target=self._await, args=(rank, process, self._ends), daemon=True).start()

    @staticmethod
    def _await(rank: int, process: int, ends: list[str]) -> None:
        """Note how a rank ends, and leave its status to torchrun."""
        with suppress(OSError):
            found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
            if found is not None:
                code = found.si_status
                exited = found.si_code == os.CLD_EXITED
                how = f"ended with exit code {code}" if exited else f"was ended by {signal.Signals(code).name}"
                ends.append(f"rank {rank} {how}")

    def _first_end(self) -> str:
        """Return how the first rank ended. One that a signal ended comes before those that noticed its end."""
        signals = [text for text in self._ends if "SIG" in text and "SIGTERM" not in text]
        return [*signals, *self._ends, "a rank has ended"][0]

    def _kill_stopped(self, ranks: Mapping[int, int]) -> None:
        from adaptive_rec.live.runtime_file import stat_fields

        since = self._stopped_since
        stopped = {process for process in ranks.values() if stat_fields(process)[:1] in (["T"], ["t"])}
        self._stopped_since = {process: since.get(process, time.monotonic()) for process in stopped}
        for rank, process in ranks.items():
            if time.monotonic() - self._stopped_since.get(process, time.monotonic()) > STOPPED_SECONDS:
                say(f"error: rank {rank} has stood still for {STOPPED_SECONDS:.0f} seconds and is ended", sys.stderr)
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)


def ranks_of_this_machine() -> dict[int, int]:
    """Return the process of each rank that this process has started and that has not ended."""
    from adaptive_rec.live.runtime_file import stat_fields

    found = {}
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                ranks = [word[5:] for word in variables if word.startswith(b"RANK=")]
                if ranks and stat_fields(child)[:1] != ["Z"]:
                    found[int(ranks[0])] = child
    return found
