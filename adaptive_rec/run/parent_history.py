"""Journal and metrics copied from the parent of a branch, up to the checkpoint that it begins with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from adaptive_rec.errors import DataError
from adaptive_rec.run import journal
from adaptive_rec.system.regular_files import bounded_lines, open_regular, parse_json
from adaptive_rec.system.strict_json import LinesLeftOut

METRICS = "metrics.jsonl"

_STEP = re.compile(rb'\{"event": "(?:snapshot|evaluation)", "step": ([0-9]{1,16})[,}]')
"""How the lines begin that runs write."""

_NAMES = re.compile(rb'"kind": "(?:saving|checkpoint)"')


def events_until(run: Path, checkpoint: str) -> list[bytes]:
    """Return the lines of a run's journal up to the one that says that a checkpoint was started. What the run did afterwards is
    no part of that checkpoint. Raises DataError where the journal does not name it."""
    path = run / journal.NAME
    try:
        with open_regular(path) as file:
            lines = [line for line, _ in bounded_lines(file)]
    except OSError as error:
        raise DataError(f"journal {path} cannot be read: {error.strerror}") from None
    started = written = 0
    for number, line in enumerate(lines, start=1):
        kind = _kind_of(line, checkpoint) if _NAMES.search(line) and checkpoint.encode() in line else None
        if kind == "saving":  # the last one counts: a name that was given up may be used again
            started, written = number, 0
        elif kind == "checkpoint":
            written = written or number
    end = started or written
    if not end:
        rule = f"must have the event of checkpoint {checkpoint}, with which the branch begins"
        raise DataError(f"journal {path} {rule}; it is missing")
    return lines[:end]


def _kind_of(line: bytes, checkpoint: str) -> str | None:
    """Return the kind of an event that names a checkpoint."""
    with suppress(ValueError, LookupError, TypeError):
        event = parse_json(line)
        if event["details"]["checkpoint"] == checkpoint:
            return str(event["kind"])
    return None


def metrics_until(run: Path, step: int, left_out: LinesLeftOut) -> Iterator[bytes]:
    """Yield the lines of a run's metrics up to a step. Lines that cannot be read are `left_out`."""
    path = run / METRICS
    try:
        with open_regular(path) as file:
            for number, (line, _) in enumerate(bounded_lines(file), start=1):
                if left_out.gives_up(number):
                    return
                at = _step_of(line)
                if at is not None and at <= step:
                    yield line if line.endswith(b"\n") else line + b"\n"
                elif at is None and line.strip():
                    left_out.add(number, len(line))
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _step_of(line: bytes) -> int | None:
    if found := _STEP.match(line):
        return int(found[1])
    with suppress(ValueError, LookupError, TypeError, OverflowError):
        return int(parse_json(line)["step"])
    return None
