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
    with open(run / NAME, "a", encoding="utf-8") as journal:
        journal.write(to_json(event.as_dict()) + "\n")


def commands(run: Path) -> dict[int, list[Command]]:
    """Step -> the commands that changed the course of a run there. Raises DataError where the journal cannot be read."""
    path = run / NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"journal {path} cannot be read: {error.strerror}") from None
    found: dict[int, list[Command]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            if event["kind"] == "knobs":
                new = {name: values["new"] for name, values in event["details"]["changed"].items()}
                found[event["step"]].append(Command("change_knobs", new))
            elif event["kind"] == "reclassified" and event["details"]["asked_for"]:
                found[event["step"]].append(Command("reclassify"))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"journal {path}, line {number}, must be an event, got {error!r}") from None
    return dict(found)
