"""``train`` as one of several processes: rank 0 is the run that users see, and the others follow it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adaptive_rec.cli.launcher import RUN_ID
from adaptive_rec.cli.output import say
from adaptive_rec.errors import AdaptiveRecError, GroupError, RankError, UsageError, first_line, with_address

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.system.torch_group import TorchGroup

RANK_0_SECONDS = 2.0
"""Time that rank 0 has to report an error that all ranks meet, before another rank does."""


def are_under_way() -> bool:
    """Whether this process is one of several that torchrun, or a launcher with the same variables, has started."""
    return _number("WORLD_SIZE", 1) > 1 and "RANK" in os.environ


def are_launched() -> bool:
    """Whether these processes were started by `launcher.py`, which passes signals on and has said what is said once."""
    return are_under_way() and os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(RUN_ID)


def are_silent() -> bool:
    """Whether this process leaves it to another one to say what is said once."""
    return are_launched() or (are_under_way() and _number("RANK", 0) > 0)


def is_restarted() -> bool:
    """Whether torchrun has started the processes again, after one of them had ended."""
    return are_under_way() and _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def check_launch(args: argparse.Namespace) -> None:
    """Raise UsageError where a launcher has set variables that name no rank: it would train alone, or wait for nobody; and for
    options that start processes, where another launcher than ours has started this one."""
    ranks, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK")
    if not ranks.isdecimal() or int(ranks) < 1:
        raise UsageError(f"WORLD_SIZE must be a whole number from 1 on where a launcher sets it, got {ranks!r}")
    if int(ranks) > 1 and not (rank is not None and rank.isdecimal() and int(rank) < int(ranks)):
        raise UsageError(f"RANK must be a whole number below WORLD_SIZE, which is {ranks}, got {rank or 'none'}")
    for name, none in (("processes", "1"), ("restarts", "0"), ("detach", False)):
        if are_under_way() and not are_launched() and getattr(args, name) != none:
            rule = f"--{name} must be left out where a launcher starts the processes (WORLD_SIZE is {ranks})"
            raise UsageError(f"{rule}, got {getattr(args, name) if name != 'detach' else 'it'}")


def layout(wanted: int) -> tuple[int, int]:
    """Return the number of ranks of the run, and how many of them this machine has. `wanted`: those of --processes."""
    return (_number("WORLD_SIZE", 1), _number("LOCAL_WORLD_SIZE", 1)) if are_under_way() else (wanted, wanted)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdecimal() else default


def join_group(args: argparse.Namespace) -> TorchGroup:
    """Join the group of the processes that torchrun has started. A signal stops the run if torchrun ends before it."""
    if args.out is None:
        raise UsageError("--out DIR must name the run directory where torchrun starts the processes, it is not given")
    if are_launched():  # Ctrl-C reaches the launcher, which passes it on
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from adaptive_rec.system.torch_group import TorchGroup

    return TorchGroup.join()


@contextmanager
def in_group(args: argparse.Namespace, config: Config) -> Iterator[TorchGroup | None]:
    """Join the processes that torchrun has started. Yields None where this process is the only one. An error in the body ends
    the process."""
    if not are_under_way():
        yield None
        return
    group = join_group(args)
    with ended_by_errors(group):
        from adaptive_rec.runtime.rank_checks import check_ranks_start

        check_ranks_start(group, config, args.resume)
        yield group


def train_as_follower(config: Config, args: argparse.Namespace, overridden: Collection[str], group: TorchGroup) -> int:
    """Train as a rank other than 0. An error that all ranks meet is rank 0's to report. A run that a signal stopped ends with 0,
    so that torchrun does not start it again."""
    from adaptive_rec.run.follower import Follower

    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if stopped:
            os._exit(128 + number)
        stopped.append(number)
        follower.present.hurry()

    follower = Follower(config, args.out, args.resume, overridden, group)
    for number in (signal.SIGTERM,) if are_launched() else (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    follower.train()
    group.close()
    return 0


@contextmanager
def ended_by_errors(group: TorchGroup) -> Iterator[None]:
    """Report an error in the body and end this process at once: torch would wait for the other ranks. They get the error, to name
    it in their own; where all print to one screen, they leave it to this rank."""
    try:
        yield
    except AdaptiveRecError as error:
        if group.rank and not isinstance(error, GroupError):
            time.sleep(RANK_0_SECONDS)
        if not (isinstance(error, RankError) and are_launched()):
            say(f"error: {f'rank {group.rank}: ' * bool(group.rank)}{with_address(error)}", sys.stderr)
        if not isinstance(error, GroupError):
            group.tell_failure(with_address(error), error.exit_code)
        sys.stdout.flush()
        os._exit(error.exit_code)
    except Exception as error:  # reported where the process ends
        group.tell_failure(first_line(error), 1)
        raise
