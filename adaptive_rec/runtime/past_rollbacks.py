"""The rollbacks that rules of the watchdog have made, by the journal of a run."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.system.regular_files import bounded_lines, open_regular, parse_json

BEFORE_IT_IS_SAVED = ("left_out", "knobs", "saving")
"""Kinds of events between a rollback and the checkpoint of the state that it goes on in, where that is another."""


def rollbacks_past(journal: Path | None, step: int) -> int:
    """Return how often rules have taken back steps after this one, by the journal, which no rollback shortens. One that a kill
    or a refusal kept from going back does not count, nor one whose new knobs and place in the stream a kill kept from being
    saved: the run that is resumed meets the same steps again."""
    if journal is None or not journal.is_file():
        return 0
    count, broken_at, unsaved = 0, 0, False
    with open_regular(journal) as file:
        lines = [line for line, _ in bounded_lines(file)]
    for line in lines:
        try:
            event = parse_json(line)
            if event["kind"] == "watchdog" and event["details"]["action"] == "rollback":
                broken_at = event["step"]
            elif event["kind"] == "rolled_back":
                unsaved = broken_at > step
                count += unsaved
            elif event["kind"] == "started":
                count -= unsaved
            if event["kind"] not in ("rolled_back", *BEFORE_IT_IS_SAVED):
                unsaved = False
            if event["kind"] in ("rolled_back", "started"):
                broken_at = 0
        except (ValueError, LookupError, TypeError):  # a line that a killed run left half-written
            continue
    return count
