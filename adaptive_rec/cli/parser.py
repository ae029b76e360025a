"""The parser of command lines, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from adaptive_rec.errors import ConfigError, UsageError, did_you_mean

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.live.listen import ServeOptions

LINK_HINT = "(adaptive-rec dashboard prints a link that signs in)"
"""Printed after the address where a link would put its sign-in code into a log."""

CONFIG_HELP = "preset or TOML file (default: the one that train would take)"
DATA_HELP = "CSV, TSV, Parquet, Arrow or JSON Lines (with --label), a Criteo file, a prepared folder, or synthetic"
SMALL_FILE_BYTES = 256 << 20


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as they are written, and the help of the longest option on its line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 14  # argparse leaves out that names of commands are indented twice


MISSING = "the following arguments are required: "
"""The beginning of argparse's error."""


class MissingError(Exception):
    """Required arguments are missing: either options or positional ones, as argparse looks for one kind after the other."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(*names)
        self.names = names


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of ending the process, and lists its options so that one can be suggested."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **settings)
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")  # a word such as -1GiB is a value, too, and no option
        self._intermixed = False

    @property
    def options(self) -> list[str]:
        return list(self._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options before, between and after optional positional arguments, which argparse alone mixes up. One error names
        all arguments that are missing; argparse by itself would name the options first."""
        if self._intermixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        except MissingError as error:
            self._intermixed = False
            names = [*self._missing_positionals(args, error.names), *error.names]
            self.error(f"{MISSING}{', '.join(names)}{self._hint_of_values(args)}")
        finally:
            self._intermixed = False

    def _missing_positionals(self, args: Any, options: list[str]) -> list[str]:
        """Return the positional arguments that are missing besides these options: parse again as if the options were given."""
        if not all(name.startswith("-") for name in options):
            return []
        self._intermixed = True
        try:
            self.parse_known_intermixed_args([*args, *(word for name in options for word in (name, "given"))])
        except MissingError as error:
            return error.names
        finally:
            self._intermixed = False
        return []

    def _hint_of_values(self, args: Any) -> str:
        """Return which word is no option, or how to write a value that was taken for one."""
        taken = [
            word
            for word in args
            if word.startswith("-") and word.strip("-") and word.partition("=")[0] not in self.options
        ]
        if not taken:
            return ""
        if (option := taken[0].partition("=")[0]).startswith("--"):
            return f"; {option} is unknown{did_you_mean(option, self.options)}"
        return f"; a value such as {taken[0]} comes last, after --"

    def error(self, message: str) -> NoReturn:
        if self._intermixed and message.startswith(MISSING):
            raise MissingError(message.removeprefix(MISSING).split(", "))
        raise UsageError(f"{message} (see {self.prog} --help)", faq="unknown-command")


def add_command(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], purpose: str, **settings: Any
) -> Parser:
    """Add a command that `run` executes; `purpose` is its line in the list of commands and opens its help."""
    settings.setdefault("description", f"{purpose[0].upper()}{purpose[1:]}.")
    parser: Parser = subparsers.add_parser(name, help=purpose, **settings)
    parser.set_defaults(command=run)
    return parser


def add_client_options(parser: Parser, url: bool = True) -> None:
    """--json, and the run to connect to."""
    which = parser.add_mutually_exclusive_group() if url else parser
    add = which.add_argument
    add("--run", metavar="RUN", help="the run, where several are under way: name, directory or pid")
    if url:
        add("--url", metavar="URL", help="address of a service elsewhere; ADAPTIVE_REC_TOKEN holds its token")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


class GivenOnce(argparse.Action):
    """Takes the value of an option that may be given once; argparse would take the last one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if (before := getattr(namespace, self.dest)) is not None:
            rule = f"{option_string} must be given once, a run learns one label, got {before!r} and {values!r}"
            raise UsageError(f"{rule}; train a run for each, or make one column of them")
        setattr(namespace, self.dest, values)


def add_schema_options(parser: Parser, in_time: str = "they are read in its order, and the newest are held out") -> None:
    """--label, --schema and others, which say what the columns of CSV, TSV or Parquet files are. `in_time`: what --time does."""
    labelled = (
        "CSV, TSV or Parquet: the column of 0 and 1, or a comparison such as 'rating >= 4' or 'answer == yes'; "
        "the schema is inferred"
    )
    parser.add_argument("--label", metavar="COLUMN", help=labelled, action=GivenOnce)
    chosen = "in place of --label, where every row is a positive: the column of the items, of which others are drawn as negatives"
    parser.add_argument("--item", metavar="COLUMN", help=chosen)
    chooser = "with --item: the column of the users, for whom nothing is drawn that they have chosen"
    parser.add_argument("--user", metavar="COLUMN", help=chooser)
    described = "CSV, TSV or Parquet: TOML file that names label and columns, as a first run with --label writes it"
    parser.add_argument("--schema", metavar="FILE", type=Path, help=described)
    named = f"CSV, TSV or Parquet: the column of the rows' times; {in_time}"
    parser.add_argument("--time", metavar="COLUMN", help=named)
    weighted = "CSV, TSV or Parquet: the column that says how much each row counts, a number of at least 0; it is no feature"
    parser.add_argument("--weight", metavar="COLUMN", help=weighted)
    grouped = "CSV, TSV or Parquet: the column of groups, such as users, within which rows are ranked; it may be a feature too"
    parser.add_argument("--group", metavar="COLUMN", help=grouped)


def add_metrics_option(parser: Parser, default: str) -> None:
    """--metrics, those that rank the samples of groups."""
    named = f"gauc, mrr, recall@K, ndcg@K: how well the rows of each group (--group) are ranked ({default})"
    parser.add_argument("--metrics", metavar="NAME,...", help=named)


def metric_names(text: str | None) -> list[str] | None:
    """Return the names of --metrics; None where it is not given. Raises UsageError."""
    if text is None:
        return None
    from adaptive_rec.config.metrics import ranking_metric

    names = [name.strip() for name in text.split(",")] if text.strip() else []
    try:
        for name in names:
            ranking_metric(name)
    except ConfigError as error:
        raise UsageError(f"--metrics: {error}") from None
    if double := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--metrics must name each metric once, got {double} {names.count(double)} times")
    return names


def describes_files(args: argparse.Namespace) -> bool:
    """Return whether options say that files are CSV, TSV or Parquet files. Raises UsageError where they contradict each other."""
    if args.item is not None and args.label is not None:
        raise UsageError("--item says that every row is a positive, and --label that some are not: give one of them")
    if args.user is not None and args.item is None:
        raise UsageError("--user needs --item COLUMN, the column of the items that users have chosen")
    return args.label is not None or args.schema is not None or args.item is not None


def add_checkpoint_option(parser: Parser) -> None:
    """--checkpoint, which says what of a run is read."""
    which = "best, newest, a step or a name (default: best where the run has kept its best evaluation's, else newest)"
    parser.add_argument("--checkpoint", metavar="WHICH", help=which)


def add_serve_options(parser: Parser) -> None:
    """The address of the HTTP service."""
    add = parser.add_argument_group("dashboard and API").add_argument
    add("--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--port", metavar="N", type=int, help="port, or the next free one (default: 8470)")
    allowed = "host name that clients may use for this machine; required except on loopback (repeatable)"
    add("--allow-host", metavar="NAME", action="append", default=[], help=allowed)
    add("--token-file", metavar="FILE", type=Path, help="file of the read-only token, for scrapers; created if absent")


def serve_options(given: Mapping[str, Any]) -> ServeOptions:
    """Return where to listen. Raises UsageError where the service would be open to others by accident."""
    from adaptive_rec.live.listen import ServeOptions  # late: it would make loading a third slower

    return ServeOptions(**given)


def given_serve_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the service that the command line has, as fields of ServeOptions."""
    allowed = tuple(args.allow_host) or None
    given = {"host": args.host, "port": args.port, "allow_hosts": allowed, "token_file": args.token_file}
    return {name: value for name, value in given.items() if value is not None}


def on_terminal() -> bool:
    """Whether a person reads standard output. Only then do commands print a token without a request for it."""
    return sys.stdout.isatty()


# Values --------------------------------------------------------------------------------------------------------------


def add_settings(parser: Parser, purpose: str = "any other key of the configuration") -> None:
    """--set, which overrides keys of the configuration."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"{purpose} (repeatable)")


def text_settings(values: Mapping[str, Any]) -> list[str]:
    """Return KEY=VALUE settings of texts, quoted as TOML wants them; those that are None are left out."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value is not None]


def order_settings(args: argparse.Namespace) -> list[str]:
    """Return the settings that --time stands for: none where data is followed, which is trained on as it comes."""
    ordered = args.time is not None and not getattr(args, "follow", False)
    return ["data.order=time", "data.shuffle=false"] if ordered else []


def number_settings(values: Mapping[str, str | None]) -> list[str]:
    """Return KEY=VALUE settings of numbers as they were typed; those that are None are left out."""
    return [f"{key}={value}" for key, value in values.items() if value is not None]


def configuration(named: str | None, data: str | None, settings: list[str]) -> Config:
    """Load a preset or TOML file, by default the preset that suits the data, with these settings."""
    from adaptive_rec.config.tree import given_keys, load_config

    described = any(setting.startswith("data.schema_file=") for setting in settings)
    positives_alone = any(setting.startswith("data.implicit.negatives=") for setting in settings)
    preset = "clicks_raw" if described else "implicit" if positives_alone and data != "synthetic" else preset_for(data)
    passes_once = any(setting.replace('"', "") in ("data.order=time", "data.follow=true") for setting in settings)
    takes_one = passes_once and preset == "implicit" and not named  # the preset has more passes
    once = ["data.epochs=1"] if takes_one and "data.epochs" not in given_keys(None, os.environ, settings) else []
    return load_config(named or preset, os.environ, [*once, *settings])


def preset_for(data: str | None) -> str:
    """Return the preset that suits the data; that of the full data set has too large batches for a small file."""
    if data is None or data == "synthetic":
        return "synthetic"
    files = Path(data).glob("*.npy") if os.path.isdir(data) else [Path(data)]
    small = os.path.exists(data) and sum(file.stat().st_size for file in files) <= SMALL_FILE_BYTES
    if any(Path(data).glob("*_values.arrow")):
        return "clicks_small" if small else "clicks"
    return "criteo_sample" if small else "criteo_kaggle"


def whole_number(name: str, typed: str, low: int, high: int | None = None) -> int:
    """Return a whole number of the command line. Raises UsageError outside low .. high."""
    digits = typed.removeprefix("-") if low < 0 else typed
    if digits.isascii() and digits.isdecimal() and low <= int(typed) and (high is None or int(typed) <= high):
        return int(typed)
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise UsageError(f"{name} must be a whole number {limits}, got {typed}")


def create_folder(out: Path) -> None:
    """Create the folder of --out. Raises UsageError where it cannot be written."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must be a folder, {out} is a file")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise UsageError(f"--out must be a folder that can be written, got {out}")


def check_out_file(out: Path) -> None:
    """Raise UsageError unless --out is a file that can be made in a folder, or one that can be replaced."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"--out must be a file in a folder that exists, got {out}{', a folder' * out.is_dir()}")
    if not os.access(out if out.exists() else out.absolute().parent, os.W_OK):
        raise UsageError(f"--out must be a file that can be written, got {out}")
