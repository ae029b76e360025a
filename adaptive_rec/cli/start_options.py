"""The options that say how a run starts and is served, of ``train`` and of ``branch``, which starts one as ``train --resume``."""

from __future__ import annotations

import argparse

from adaptive_rec.cli.parser import Parser, add_serve_options
from adaptive_rec.errors import UsageError

SWITCHES = ("detach", "json", "no_serve", "linger")
VALUES = ("processes", "restarts", "host", "port", "token_file")


def add_start_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--processes", metavar="N", default="1", help="train in N processes of this machine, started by torchrun")
    restarted = "with --processes: how often to start them again from the newest checkpoint after one has ended"
    add("--restarts", metavar="N", default="0", help=restarted)
    add("--detach", action="store_true", help="train in the background; returns once training is under way")
    add("--no-serve", action="store_true", help="no dashboard, API or shell commands for this run")
    add("--linger", action="store_true", help="keep the dashboard and the API after the last step, until a stop")
    add_serve_options(parser)


SERVED = ("linger", "host", "port", "allow_host", "token_file")
"""Options of the service, which --no-serve leaves without effect."""


def check_start_options(args: argparse.Namespace) -> None:
    """Raise UsageError where one option leaves another without effect."""
    for name in SERVED:
        value = getattr(args, name)
        if args.no_serve and not (value is None or value is False or value == []):  # a port of 0 is given, too
            raise UsageError(
                f"{_option(name)} is for the dashboard and the API and --no-serve starts none; give one of them"
            )


def start_words(args: argparse.Namespace) -> list[str]:
    """Return these options, as far as they were given, as words of a command line."""
    values = ((name, getattr(args, name)) for name in VALUES)
    given = [f"{_option(name)}={value}" for name, value in values if value not in (None, STANDARD.get(name))]
    allowed = [f"--allow-host={name}" for name in args.allow_host]
    return [*given, *allowed, *(_option(name) for name in SWITCHES if getattr(args, name))]


STANDARD = {"processes": "1", "restarts": "0"}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
