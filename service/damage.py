"""Which files of a run are damaged, and which of their lines are left out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from adaptive_rec.service.config_keys import config_keys
from adaptive_rec.service.documented import Answer
from adaptive_rec.service.hello import Values
from adaptive_rec.service.lines import MemorySummary, Tail
from adaptive_rec.service.problems import ProblemError
from adaptive_rec.system.regular_files import MOST_BYTES, open_regular
from adaptive_rec.system.strict_json import LinesLeftOut, fits, parsed

SUMMARY = "summary.json"


class DamagedFile(Answer):
    """A file of the run that is damaged. What is whole in it is shown."""

    file: Annotated[str, Field(description="Its name in the run's directory")]
    fault: Annotated[str, Field(description="What is wrong with it, in words")]
    lines_left_out: Annotated[int, Field(description="Lines that cannot be read; 0 where the whole file cannot be")]
    first_lines: Annotated[list[int], Field(description="The numbers of the first of them, from 1")]


def of_tail(tail: Tail, ended: bool) -> list[Values]:
    """Return the damage of a file of lines; nothing where it is whole. `ended`: whether nobody writes it any more."""
    left_out = tail.left_out_at_the_end() if ended else tail.left_out
    found = [_damaged_file(tail.path, str(left_out), left_out)] if left_out.count else []
    return found + ([_damaged_file(tail.path, tail.fault)] if tail.fault else [])


def of_ended_run(run: Path) -> list[Values]:
    """Return the damage of the files that describe a run that has ended."""
    found = []
    if os.path.lexists(run / SUMMARY) and summary_of(run) is None:
        found.append(_damaged_file(run / SUMMARY, "must be a JSON object with the figures of a run, it is none"))
    try:
        config_keys(run)
    except ProblemError as problem:
        found.append(_damaged_file(run / "config.toml", str(problem).removeprefix("config.toml ")))
    return found


def summary_of(run: Path, links: bool = True) -> Values | None:
    """Return the summary of a run; None where there is none that can be read. Unless `links`, one that is a link counts as
    missing."""
    with suppress(OSError):
        with open_regular(run / SUMMARY, links) as file:
            values = parsed(file.read(MOST_BYTES))
        return values if values is not None and fits(MemorySummary, values) else None
    return None


def _damaged_file(path: Path, fault: str, left_out: LinesLeftOut | None = None) -> Values:
    left_out = left_out or LinesLeftOut()
    return {
        "file": path.name, "fault": fault, "lines_left_out": left_out.count, "first_lines": list(left_out.numbers),
    }  # fmt: skip
