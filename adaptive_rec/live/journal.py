"""The journal of a run: what happened at which step, one JSON object per line of ``events.jsonl``.

Whatever changed the course of a run is in it, so the run can be made again: same configuration, same changes at the same steps.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from adaptive_rec.errors import DataError
from adaptive_rec.live.mailbox import Command
from adaptive_rec.telemetry import Event, to_json

NAME = "events.jsonl"


def append(run: Path, event: Event) -> None:
    """Add an event to a run's journal."""
    with open(run / NAME, "ab+") as journal:
        size = journal.seek(0, 2)
        if size:
            journal.seek(size - 1)
            if journal.read(1) != b"\n":
                journal.write(b"\n")  # a run was killed in the middle of a line
        journal.write(to_json(event.as_dict()).encode() + b"\n")


def commands(run: Path) -> dict[int, list[Command]]:
    """Step -> the commands that changed the course of a run there.

    Raises DataError where the journal cannot be read, or is of a run that was resumed: what that forgot cannot be made again.
    """
    path = run / NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"journal {path} cannot be read: {error.strerror}") from None
    found: dict[int, list[Command]] = defaultdict(list)
    starts = 0
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            starts += event["kind"] == "started"
            if event["kind"] == "knobs":
                new = {name: values["new"] for name, values in event["details"]["changed"].items()}
                by_itself = event["details"].get("before_step", False)
                found[event["step"]].append(Command("halve_budget" if by_itself else "change_knobs", new))
            elif event["kind"] == "split":
                found[event["step"]].append(Command("choose_split", event["details"]))
            elif event["kind"] == "reclassified" and event["details"]["asked_for"]:
                found[event["step"]].append(Command("reclassify"))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"journal {path}, line {number}, must be an event, got {error!r}") from None
    if starts > 1:
        raise DataError(
            f"journal {path} must be of a run that went through in one piece, it was started {starts} times"
        )
    return dict(found)
