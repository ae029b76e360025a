"""The journal of a run: what happened at which step, one JSON object per line of ``events.jsonl``.

It has everything that changed the course of a run, so a run can be replayed: same configuration, same changes at the same steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple
from pathlib import Path
from typing import Any

from adaptive_rec.batch import Position
from adaptive_rec.config.knobs import Knobs, within_bounds
from adaptive_rec.config.trust import TRUST
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.live.mailbox import Command, Verb
from adaptive_rec.live.telemetry import Event, to_json
from adaptive_rec.system.regular_files import bounded_lines, open_regular, parse_json

NAME = "events.jsonl"
PART = ("begin", "end", "samples")
"""What the journal says of a part of the stream that is left out."""
Parts = tuple[dict[int, list[Command]], dict[int, list[Command]]]
"""Commands by step: of a run's passes, and of its training on the validation slice."""
Place = tuple[int, int]
"""The part of the run, 0 or 1, and the step."""
SPLIT_TYPES: dict[str, Any] = {"split": bool, "whole_seconds": (int, float), "split_seconds": (int, float)}


def line_of(event: Event) -> str:
    """An event as it stands in the journal."""
    return to_json(event.as_dict())


def commands(run: Path, on_slice: bool = False) -> dict[int, list[Command]]:
    """Read the commands that changed the course of a run, by step: those of its passes or, `on_slice`, of its training on the
    validation slice, for which it went back to an earlier step.

    Commands after a checkpoint that the run was resumed from, or went back to, are left out: the run lost them. Raises DataError
    where the journal cannot be read, or does not name the checkpoint that a run was resumed from.
    """
    return _commands(run / NAME, "")[0][on_slice]


def replayed_run(run: Path) -> Path | None:
    """Return the run that a run replays; None where it replays none. Lines that are no events are passed over. Raises DataError
    where the event of the start names no run."""
    path = run / NAME
    for number, line in enumerate(_lines(path) if path.exists() else (), start=1):
        try:
            event = _read(line, 0)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("kind") == "started":
            details = event.get("details")
            if not isinstance(details, dict) or not isinstance(details.get("replays", ""), str):
                raise DataError(f"journal {path}, line {number}, must have the details of a start, got {str(details)[:100]}")
            return Path(details["replays"]) if "replays" in details else None
    return None


def left_to_replay(replayed: Path, run: Path, checkpoint: str, on_slice: bool = False) -> dict[int, list[Command]]:
    """Return the commands of a replayed run, by step, that a checkpoint of the run that replays it does not have yet.
    `on_slice`: those of its training on the validation slice, which begins now. Raises DataError where one of the two journals
    cannot be read."""
    try:
        parts = _commands(replayed / NAME, "")[0]
    except DataError as error:
        raise DataError(f"{run} replays {replayed} and needs its journal to go on: {error}") from None
    if on_slice:
        return parts[1]
    done, ((part, step), kept) = _commands(run / NAME, checkpoint)
    left = parts[part]
    here = left.get(step, [])
    for command in done[part].get(step, [])[:kept]:
        if command in here:
            here.remove(command)
    return {at: given for at, given in left.items() if at >= step and given}


def _lines(path: Path) -> list[str]:
    if path.is_fifo():
        raise DataError(f"journal {path} must be a regular file, it is a pipe")
    try:
        with open_regular(path) as file:
            return [line.decode("utf-8").rstrip("\r\n") for line, _ in bounded_lines(file)]
    except OSError as error:
        raise DataError(f"journal {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"journal {path} must be text in UTF-8: {error}") from None


def _commands(path: Path, checkpoint: str) -> tuple[Parts, tuple[Place, int]]:
    """Return the commands by step, and the place of a checkpoint with the number of commands there that it has."""
    lines = _lines(path)
    found: dict[Place, list[Command]] = defaultdict(list)
    saved: dict[str, tuple[Place, int]] = {}
    """Place of each checkpoint, and how many commands there it includes."""
    part = 0
    starts = torn = 0  # torn: the number of a line that ends early, as a killed run leaves it
    for number, line in enumerate(lines, start=1):
        try:
            event = _read(line, torn)
            if event is None:
                torn = torn or number
                continue
            if event["kind"] == "settings" and not checkpoint:
                _check_settings(event, path)
            if event["kind"] == "started":
                torn = 0
                if not checkpoint:
                    _check_settings(event, path)
                    _check_batches(event, path)
                part = _go_back(found, event, saved, starts, path)
                end = max((step for number, step in found if not number), default=0)  # of the passes, which part 1 follows
                found[0, end if part else event["step"]].append(Command("evaluate", {"made": False}))
                starts += 1
            elif event["kind"] == "rolled_back" and event["details"].get("on_slice"):
                part = 1
            elif event["kind"] == "rolled_back":
                part = _go_back(found, event, saved, starts, path)
            elif event["kind"] == "evaluation":
                samples = event["details"].get("window_samples")
                found[part, event["step"]].append(Command("evaluate", {"made": True, "samples": samples}))
            elif event["kind"] == "left_out":
                skipped = {name: event["details"][name] for name in PART}
                found[part, event["step"]].append(Command("skip_data", skipped))
            elif event["kind"] == "checkpoint_failed":
                saved.pop(event["details"].get("checkpoint"), None)
            elif event["kind"] in ("saving", "checkpoint") and "checkpoint" in event["details"]:
                if "imported" in event["details"]:
                    raise DataError(
                        f"journal {path} is of a run that started with imported tables: it cannot be replayed"
                    )
                name, step = event["details"]["checkpoint"], event["step"]
                if event["kind"] == "saving" or name not in saved:
                    saved.pop(name, None)  # a name that was given up, or lost, may be used again
                    saved[name] = (part, step), len(found[part, step])
            elif event["kind"] == "knobs" and event["details"].get("at_start"):
                how = "was resumed under knobs that cannot change while a run trains"
                raise DataError(f"journal {path} is of a run that {how}: it cannot be replayed")
            elif event["kind"] == "knobs":
                new = within_bounds({name: each["new"] for name, each in event["details"]["changed"].items()})
                by_itself = event["details"].get("before_step", False)
                note = {name: event["details"][name] for name in ("why", "undoes") if name in event["details"]}
                verb: Verb = "halve_budget" if by_itself else "change_knobs"
                found[part, event["step"]].append(Command(verb, new, note=note))
            elif event["kind"] == "split":
                found[part, event["step"]].append(Command("choose_split", event["details"]))
            elif event["kind"] == "guard" and event["details"].get("put_off"):
                found[part, event["step"]].append(Command("put_off_trial", {"why": str(event["text"])}))
            elif event["kind"] == "reclassified" and event["details"]["asked_for"]:
                found[part, event["step"]].append(Command("reclassify"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"journal {path}, line {torn or number}, must be an event, got {error!r}") from None
    if torn and not checkpoint:  # the run goes on behind it
        raise DataError(f"journal {path}, line {torn}, must be an event, got something that ends early")
    parts: Parts = {}, {}
    for (number, step), done in found.items():
        for command in done:
            _check(step, command, path)
        if done:
            parts[number][step] = done
    if checkpoint and checkpoint not in saved:
        raise DataError(f"journal {path} must have the event of checkpoint {checkpoint} that the run resumes from")
    return parts, saved.get(checkpoint, ((0, 0), 0))


def _check_settings(event: Any, path: Path) -> None:
    """Raise DataError where a run went on with other settings, which a replay would use from the start."""
    if settings := event["details"].get("settings"):
        changed = ", ".join(f"{name} {each['old']} -> {each['new']}" for name, each in settings.items())
        how = f"went on at step {event['step']} with other settings ({changed})"
        raise DataError(f"journal {path} is of a run that {how}: it cannot be replayed")


def _check_batches(event: Any, path: Path) -> None:
    """Raise DataError where a run that follows its data went on after it had ended within a batch: its replay would put the rows
    that came later into that batch."""
    if event["details"].get("within_batch"):
        how = f"followed its data, ended within a batch and went on at step {event['step']}"
        raise DataError(f"journal {path} is of a run that {how}: it cannot be replayed")


def _check(step: Any, command: Command, path: Path) -> None:
    """Raise DataError for a command that no run can have written, ConfigError for a policy that may not be imported."""
    try:
        if type(step) is not int or step < 0:
            raise ValueError(f"step must be a whole number from 0 on, got {step!r}")
        if command.verb in ("change_knobs", "halve_budget"):
            Knobs().changed(dict(command.values))
        if command.verb == "evaluate" and not (
            (samples := command.values.get("samples")) is None or (type(samples) is int and samples >= 0)
        ):
            raise ValueError(f"window_samples of an evaluation must be a whole number from 0 on, got {samples!r}")
        if command.verb == "choose_split":
            if command.values.keys() != SPLIT_TYPES.keys():
                raise ValueError(f"split must have {', '.join(SPLIT_TYPES)}, got {', '.join(command.values)}")
            for name, kind in SPLIT_TYPES.items():
                if not isinstance(command.values[name], kind):
                    raise ValueError(f"{name} of split must be a {kind}, got {command.values[name]!r}")
        if command.verb == "skip_data":
            if type(command.values["samples"]) is not int:
                raise ValueError(f"samples must be a whole number, got {command.values['samples']!r}")
            for name in ("begin", "end"):
                place = Position(**command.values[name])
                if not all(type(part) is int and part >= 0 for part in astuple(place)):
                    raise ValueError(f"{name} must be a place in the stream, got {command.values[name]!r}")
    except (ValueError, TypeError, AttributeError, ConfigError) as error:
        raise DataError(f"journal {path} must be of a run, at step {step!r} it is not: {error}") from None
    TRUST.check(f"knobs.policy in {path}, step {step},", str(command.values.get("policy", "")))


def _read(line: str, torn: int) -> Any:
    """An event; None for a line that is not JSON, which only a start may follow."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    if torn and event["kind"] not in ("settings", "started"):
        raise ValueError("something that ends early")
    return event


def _go_back(
    found: dict[Place, list[Command]], event: Any, saved: dict[str, tuple[Place, int]], starts: int, path: Path
) -> int:
    """Drop the commands that a run lost that was resumed from a checkpoint, or went back to one: those after it. Returns the part
    of the run that the checkpoint is of."""
    name = event["details"].get("checkpoint")
    if starts and name is None and event["step"]:
        raise DataError(
            f"journal {path} must name the checkpoint that the run was resumed from at step {event['step']}; it is missing"
        )
    if name and (starts or "parent" in event["details"]) and name not in saved:
        raise DataError(f"journal {path} must have the event of checkpoint {name} that the run was resumed from")
    first: Place = 0, event["step"]
    place, kept = saved.get(name, (first, len(found[first]))) if name else ((0, 0), 0)
    for later in [each for each in found if each > place]:
        del found[later]
    names = list(saved)
    for later_one in names[names.index(name) + 1 if name in saved else 0 :]:
        del saved[later_one]
    del found[place][kept:]
    return place[0]
