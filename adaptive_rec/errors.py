"""Errors a user can meet. Every message states the rule, the name and the value.

AdaptiveRecError
├── UsageError        a command line that cannot be executed             (exit code 2)
│   └── ConfigError   a key or value of the configuration is wrong       (exit code 2)
├── ConflictError     a command that does not fit the run's present state (exit code 1)
├── TrainingError     a run cannot train on                              (exit code 1)
│   └── NotFiniteError  losses or gradients of a step are not finite     (exit code 1)
├── GroupError        a process of several has ended or does not answer  (exit code 1)
│   └── RankError     another process has an error of its own            (its exit code)
├── DataError         input data breaks a rule of its format             (exit code 3)
├── MemoryPlanError   the tables do not fit where they should            (exit code 4)
├── CheckpointError   a checkpoint cannot be written or read             (exit code 5)
└── DiskError         rows cannot be written to or read from a disk      (exit code 6)

A run that a rule suspends ends without an error, with exit code 7 (`SUSPENDED`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeVar

SUSPENDED = 7
"""Exit code of a run that a rule would pause where no command could have it go on."""

NEAR = 0.65
"""Similarity of two names (difflib's) from which on one is suggested for the other: help is not near eval, with 0.5."""


FAQ = "docs/faq.md"
"""The page that explains the errors which users meet most, each under an anchor of its own."""

Error = TypeVar("Error", bound=BaseException)


def see_faq(error: Error, anchor: str) -> Error:
    """Add the address of an error's explanation as a note, which a traceback shows below the message, and return the error."""
    error.add_note(f"See {FAQ}#{anchor}")
    return error


class AdaptiveRecError(Exception):
    """The base of all errors that a user's input or environment causes."""

    exit_code = 1

    def __init__(self, *values: object, faq: str = "") -> None:
        """`faq`: the anchor of docs/faq.md that explains the error."""
        super().__init__(*values)
        self.faq = faq
        if faq:
            see_faq(self, faq)


class UsageError(AdaptiveRecError):
    exit_code = 2


class ConfigError(UsageError):
    """An option, a configuration value or a model that does not fit; the message names the rule and the value."""


class ConflictError(AdaptiveRecError):
    pass


class TrainingError(AdaptiveRecError):
    pass


class NotFiniteError(TrainingError):
    """Losses or gradients of a step are not finite."""

    def __init__(self, text: str, step: int) -> None:
        """`step`: the step, counted from 1."""
        super().__init__(text, faq="not-finite")
        self.step = step


class GroupError(AdaptiveRecError):
    """The ranks of a run cannot go on together."""


class RankError(GroupError):
    """An error of another rank, whose exit code this one has too."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class DataError(AdaptiveRecError):
    exit_code = 3


class MemoryPlanError(AdaptiveRecError):
    exit_code = 4


class CheckpointError(AdaptiveRecError):
    exit_code = 5


class DiskError(AdaptiveRecError):
    exit_code = 6


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch on the host, CUDA or one of its libraries failed to get memory."""
    return (
        isinstance(error, MemoryError)
        or "OutOfMemory" in type(error).__name__
        or re.search("allocate memory|out of memory|ALLOC_FAILED", str(error)) is not None
    )


def not_pickled(thing: object, way_out: str) -> TypeError:
    """Return the error of a thing whose rows are in the memory of this process, where it is pickled or copied."""
    text = f"{type(thing).__name__} must not be pickled or copied, as its rows are in this process; {way_out}"
    return see_faq(TypeError(text), "pickled")


def with_address(error: AdaptiveRecError) -> str:
    """Return an error's message with the address of its explanation, in one line where the message is one."""
    return f"{error}{f' (see {FAQ}#{error.faq})' * bool(error.faq)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for a known name that is near, in either case, or is the only one that has this one as a
    part; otherwise an empty string."""
    names, typed = {other.lower(): other for other in known}, name.lower()
    parts = [other for other in names if typed and typed in (*re.split(r"[_.-]", other), other.partition(":")[0])]
    nearest = difflib.get_close_matches(typed, list(names), n=1, cutoff=NEAR) or (parts if len(parts) == 1 else [])
    return f"; did you mean {names[nearest[0]]}?" if nearest else ""
