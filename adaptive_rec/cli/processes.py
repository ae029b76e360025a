"""``train`` in several processes: torchrun starts them, rank 0 is the run that users see, and the others follow it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.output import say
from adaptive_rec.cli.parser import whole_number
from adaptive_rec.errors import UsageError
from adaptive_rec.policy.find import load_policy

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.system.torch_group import TorchGroup

MOST_PROCESSES, MOST_RESTARTS = 1024, 1000

STOP_SECONDS = 600
"""Time that processes have after a signal to write the last checkpoint, before torchrun kills them."""


@dataclass(frozen=True)
class Wanted:
    """Numbers of processes and restarts of a command line."""

    processes: int
    restarts: int

    @staticmethod
    def of(args: argparse.Namespace) -> Wanted:
        """Read the options. Raises UsageError."""
        return Wanted(
            whole_number("--processes", args.processes, 1, MOST_PROCESSES),
            whole_number("--restarts", args.restarts, 0, MOST_RESTARTS),
        )


def are_under_way() -> bool:
    """Whether this process is one of several that torchrun, or a launcher with the same variables, has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_restarted() -> bool:
    """Whether torchrun has started the processes again, after one of them had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launch(words: list[str], wanted: Wanted, config: Config, out: Path) -> int:
    """Start the same command line in several processes of this machine by torchrun, and wait for their end."""
    from adaptive_rec.runtime.assemble import check_group

    check_group(config, load_policy(config.knobs.policy))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // wanted.processes)))
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a restart finds the addresses of the processes before it
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOP_SECONDS))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it says is said below
    launched = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=wanted.processes, run_id=uuid.uuid4().hex, max_restarts=wanted.restarts,
        monitor_interval=0.2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    )  # fmt: skip
    try:
        elastic_launch(launched, sys.executable)("-m", "adaptive_rec", *words, f"--out={out}")
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = int(failure.exitcode)
        if -code in (signal.SIGINT, signal.SIGTERM):  # a stop: the run was saved
            return 128 - code
        if code < 0:
            say(f"error: rank {rank} was ended by {signal.Signals(-code).name}, and all others with it", sys.stderr)
            return 1
        return code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def join(args: argparse.Namespace) -> TorchGroup:
    """Join the group of the processes that torchrun has started."""
    if args.out is None:
        raise UsageError("--out DIR must name the run directory where torchrun starts the processes, it is not given")
    from adaptive_rec.system.torch_group import TorchGroup

    return TorchGroup.join()


def follow(config: Config, args: argparse.Namespace, group: TorchGroup) -> int:
    """Train as a rank other than 0. Errors that all ranks meet are rank 0's to report."""
    from adaptive_rec.config.tree import overridden_knobs
    from adaptive_rec.run.follower import Follower

    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if stopped:
            os._exit(128 + number)
        stopped.append(number)
        follower.runtime.hurry()

    follower = Follower(config, args.out, args.resume, overridden_knobs(os.environ, args.set), group)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with suppress(AttributeError):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    follower.train()
    group.close()
    return 128 + stopped[0] if stopped else 0
