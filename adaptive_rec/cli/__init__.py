"""The command line: parses it, executes the command and turns errors into exit codes. Each command is a module here."""

from __future__ import annotations

import argparse
import atexit
import errno
import io
import os
import re
import signal
import sys

from adaptive_rec.cli.commands import COMMANDS, add_all_commands, add_commands_beside
from adaptive_rec.cli.output import say
from adaptive_rec.cli.parser import Parser
from adaptive_rec.config.trust import OPTION, TRUST, settings_in, taken_out
from adaptive_rec.errors import (
    FAQ,
    AdaptiveRecError,
    MemoryPlanError,
    UsageError,
    did_you_mean,
    first_line,
    is_out_of_memory,
    with_address,
)
from adaptive_rec.system.libraries import end_without_collection, ignore_file, import_quickly
from adaptive_rec.system.limits import check_libraries, limits_in_words, save_address_space
from adaptive_rec.system.openmp import wait_briefly
from adaptive_rec.system.version import __version__, warning_here
from adaptive_rec.units import readable

WHILE_UNDER_WAY = """
while a run is under way, from any shell of the same user:
  adaptive-rec status --watch                            its progress
  adaptive-rec knobs set alpha=0.8 hot_budget_bytes=64MiB
  adaptive-rec placement C3 --class stale                the stale rows of a table
  adaptive-rec dashboard                                 the link to its dashboard
"""

WAY_OUT = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files of other programs: the system has no more",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f)",
    errno.EAGAIN: "a limit on processes and threads (ulimit -u) may be why, or an output that does not wait for its reader",
}
"""What to do about some answers of the system."""

LIGHT = {"status", "knobs", "placement", "pause", "resume", "stop", "reclassify", "rollback", "runs", "dashboard"}
"""Commands that load neither torch nor Arrow."""

OUT_OF_MEMORY = f"""error: out of memory: {{}} (see {FAQ}#out-of-memory)
lower data.max_table_rows or model.embedding_dim on the host, knobs.hot_budget_bytes or run.batch_size on a device"""


def main(argv: list[str] | None = None) -> int:
    """Execute one command line and return its exit code. Without `argv` it is that of the process, which ends afterwards."""
    if argv is None:
        atexit.register(end_without_collection)
    wait_briefly(os.environ)
    import_quickly()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail at a name that the terminal cannot show
    words = sys.argv[1:] if argv is None else argv
    try:
        args = parse(words)
        if warning := ignore_file():
            say(f"warning: {warning}", sys.stderr)
        save_address_space(os.environ)
        if words and words[0] not in LIGHT:
            check_libraries()
            if warning := warning_here():
                say(f"warning: {warning}", sys.stderr)
        with TRUST.only([*words, *settings_in(os.environ)]):
            code: int = args.command(args)
        sys.stdout.flush()
        return code
    except AdaptiveRecError as error:
        say(readable(f"error: {with_address(error)}"), sys.stderr)
        return error.exit_code
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_out_of_memory(error) and not re.search("failed to map segment|can't start new thread", str(error)):
            raise
        say("\n".join(filter(None, (OUT_OF_MEMORY.format(first_line(error)), limits_in_words()))), sys.stderr)
        return MemoryPlanError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if (told := answered(error)) is None:
            raise
        return told


def answered(error: OSError) -> int | None:
    """Say what the system has answered, with the file and what to do, and return the exit code; None where that is no answer that
    a user can do something about."""
    named = f"{error.filename} cannot be used" if error.filename is not None else ""
    if error.errno == errno.ENOMEM:
        say("\n".join(filter(None, (f"error: {named or 'out of memory'}: {error.strerror}", limits_in_words()))), sys.stderr)
        return MemoryPlanError.exit_code
    if named or error.errno in WAY_OUT:
        way_out = f"; {WAY_OUT[error.errno]}" if error.errno in WAY_OUT else ""
        say(f"error: {named or 'the command cannot go on'}: {error.strerror}{way_out}", sys.stderr)
        return UsageError.exit_code
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    say(f"error: the output cannot be written: {error.strerror} (see {FAQ}#disk-full)", sys.stderr)
    return 1


def parse(argv: list[str]) -> argparse.Namespace:
    """Return a command line as a namespace; its `command` executes it. Raises UsageError."""
    words = taken_out(argv)
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        raise UsageError(
            f"unknown command {name}{did_you_mean(name, COMMANDS)} (commands: {', '.join(COMMANDS)})", faq="unknown-command"
        )
    parser = Parser(
        prog="adaptive-rec",
        description="Train recommendation models whose embedding tables do not fit in GPU memory, "
        "and see and steer them while they train.",
    )
    parser.add_argument("--version", action="version", version=f"adaptive-rec {__version__}")
    trusted = "import the classes that files name, such as the policy of a run; with =NAME,... only these (any command)"
    parser.add_argument(OPTION, nargs="?", metavar="NAME", help=trusted)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    if name is not None and words[0] == name:
        add_commands_beside(name, subparsers)
    else:  # its help may be printed
        add_all_commands(subparsers)
        parser.epilog = examples()
    args, unknown = parser.parse_known_args(words)
    if unknown:
        options = [*subparsers.choices[name].options, OPTION] if name else parser.options
        option = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        if option in options:
            raise UsageError(f"options must come before --, after which all words are values, got {option} after it")
        raise UsageError(f"unknown argument {option}{did_you_mean(option, options)}", faq="unknown-command")
    if name is None:
        parser.print_help(sys.stderr)
        raise UsageError("give a command (adaptive-rec --help lists them)")
    args.argv = argv
    return args


def examples() -> str:
    """Return the examples below the help."""
    from adaptive_rec.cli import data, train

    return f"{train.EXAMPLES}{data.EXAMPLE}{WHILE_UNDER_WAY}"
