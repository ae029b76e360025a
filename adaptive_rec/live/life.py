"""The life of a run: its states, what moves it from one to another, and the state in which its files show it.

| state | what leads to it |
|---|---|
| starting | a process makes the run's parts; the journal has no start yet |
| training | event `started` or `resumed`; the end of an evaluation or a rollback (event `rolled_back`) |
| paused | event `paused` |
| evaluating, checkpointing | the training thread alone shows these, to those who ask it |
| rolling_back | event `going_back` |
| finishing | event `stopping`, or the last step |
| finished | event `finished` |
| failed | event `failed` |
| suspended | event `suspended`: a rule paused the run where no command can end a pause; `train --resume` goes on |
| branched | event `branched`: a branch that nobody has started |
| killed | none of the last four is the newest, and no process holds the run's directory |

A command that only reads writes no event and leaves the state as it is. So does `train --resume` of a run that has nothing left
to do.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from adaptive_rec.system.regular_files import open_regular

STATES = (
    "starting",
    "training",
    "paused",
    "evaluating",
    "checkpointing",
    "rolling_back",
    "finishing",
    "finished",
    "failed",
    "suspended",
    "killed",
    "branched",
)

MOVES = {
    "started": "training",
    "paused": "paused",
    "resumed": "training",
    "going_back": "rolling_back",
    "rolled_back": "training",
    "stopping": "finishing",
    "finished": "finished",
    "failed": "failed",
    "suspended": "suspended",
    "branched": "branched",
}
"""The state to which an event of the journal leads, by its kind; other events lead to none."""

KIND = re.compile(rb'"kind": ?"([a-z_]+)"')
"""The kind of an event, in its line of the journal."""

ENDS = ("finished", "failed", "suspended")
"""Events with which a start of a run ends; the states have the same names."""

OVER = (*ENDS, "killed")
"""States of a run that nobody trains any more."""

RESTS = (*ENDS, "branched")
"""States that need no process."""


def after(state: str, kind: str) -> str:
    """Return the state of a run after an event of its journal."""
    return MOVES.get(kind, state)


def state_of(kinds: Iterable[str], held: bool, has_summary: Callable[[], bool] = lambda: False) -> str:
    """Return the state of a run from the kinds of its events, oldest first. `held`: whether a process holds its directory."""
    state = "starting"
    for kind in kinds:
        state = after(state, kind)
    return at_rest(state, held, has_summary)


def at_rest(state: str, held: bool, has_summary: Callable[[], bool] = lambda: False) -> str:
    """Return the state of a run whose journal leads to `state`. Without a process that holds it, it was killed unless it rests.
    `has_summary`: asked where the journal says nothing; then a summary shows a good end."""
    if held or state in RESTS:
        return state
    return "finished" if state == "starting" and has_summary() else "killed"


def is_suspended(journal: Path) -> bool:
    """Return whether a journal says that a rule has suspended its run, which has not begun again since."""
    return moves_of(journal)[-1:] == ["suspended"]


def state_of_directory(run: Path) -> str | None:
    """Return the state of the run in a directory, as its files show it; None where the directory is no run's."""
    if not (run / "run.json").is_file():
        return None
    return state_of(moves_of(run / "events.jsonl"), is_held(run), (run / "summary.json").is_file)


def moves_of(journal: Path) -> list[str]:
    """Return the kinds of the events of a journal that move a run from state to state, oldest first. A journal that cannot be
    read has none."""
    try:
        with open_regular(journal) as file:
            return [kind for line in file if (found := KIND.search(line)) and (kind := found[1].decode()) in MOVES]
    except OSError:
        return []


LOCK = ".lock"
"""The file of a run directory that the process locks which writes there."""
_FLOCK = "hhqqi0q"
"""`struct flock`: kind, whence, start, length, process."""


def is_held(run: Path) -> bool:
    """Return whether another process holds the lock of a run directory."""
    return holder(run) is not None


def holder(run: Path) -> int | None:
    """Return the id of the other process that holds the lock of a run directory, if one does. Asks only; takes no lock."""
    try:
        with open_regular(run / LOCK, links=False) as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else int(process)
