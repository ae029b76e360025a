"""The parser of command lines, and the options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from adaptive_rec.errors import UsageError

if TYPE_CHECKING:
    from adaptive_rec.live.listen import ServeOptions

LINK_HINT = "(adaptive-rec dashboard prints the link with its token)"
"""Said where the link itself, for the sake of its token, is not: elsewhere than on a terminal."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Examples stay as they are written; the longest option still has its help beside it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 14  # names of commands are indented twice, which argparse leaves out


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process, and tells its options so that one can be suggested."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **settings)
        self._intermixed = False

    @property
    def options(self) -> list[str]:
        return list(self._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options may stand before, between and after optional positional arguments, which argparse alone mixes up."""
        if self._intermixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def add_client_options(parser: Parser, url: bool = True) -> None:
    """--json, and which run is meant."""
    which = parser.add_mutually_exclusive_group() if url else parser
    which.add_argument("--run", metavar="RUN", help="which run, where several are under way: name, directory or pid")
    if url:
        which.add_argument(
            "--url", metavar="URL", help="a service elsewhere; its token is read from ADAPTIVE_REC_TOKEN"
        )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def add_serve_options(parser: Parser) -> None:
    """Where the HTTP service listens."""
    group = parser.add_argument_group("dashboard and API")
    add = group.add_argument
    add("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--port", metavar="N", type=int, help="port; where taken, the next free one (default: 8470)")
    allow = "name that clients may ask for this machine by; elsewhere than on loopback it must be given (repeatable)"
    add("--allow-host", metavar="NAME", action="append", default=[], help=allow)
    add("--token-file", metavar="FILE", type=Path, help="file with the read-only token, for scrapers; made if absent")


def serve_options(args: argparse.Namespace) -> ServeOptions:
    """Where to listen. Raises UsageError where the service would be open to others unasked."""
    from adaptive_rec.live.listen import ServeOptions  # not on loading, which it would make longer by a third

    given = {"host": args.host, "port": args.port, "allow_hosts": tuple(args.allow_host), "token_file": args.token_file}
    return ServeOptions(**{name: value for name, value in given.items() if value is not None})


def on_terminal() -> bool:
    """Whether a person reads standard output. Only then do commands print a token unasked."""
    return sys.stdout.isatty()
