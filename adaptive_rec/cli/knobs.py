"""``knobs``: shows and changes the knobs of a run under way."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, print_json, show
from adaptive_rec.cli.parser import add_client_options, add_command, on_terminal
from adaptive_rec.errors import UsageError, did_you_mean
from adaptive_rec.units import exact_size, printable, toml_number

if TYPE_CHECKING:
    from adaptive_rec.cli.client import Client, Reply

EXAMPLES = """\
examples:
  adaptive-rec knobs                                     all of them
  adaptive-rec knobs get alpha action                    two of them
  adaptive-rec knobs set alpha=0.8 hot_budget_bytes=64MiB
  adaptive-rec knobs set stale_threshold=search alpha=default
  adaptive-rec knobs set lr_factor=0.5 --why "loss spikes"
  adaptive-rec knobs undo                                the last change; undo 12: that of event 12
"""
ATTEMPTS = 5
"""Attempts at a change where others change knobs at the same time; its values are absolute, so it can be repeated."""
DEFAULT = "default"
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "knobs", knobs, "show and change the knobs of a run", epilog=EXAMPLES)
    add = parser.add_argument
    add("action", nargs="?", metavar="get|set|undo", default="get", help="get (the default), set or undo")
    named = f"knobs to show, or to set; the value {DEFAULT!r} restores the default; with undo, the id of the event to undo"
    add("words", nargs="*", metavar="NAME[=VALUE]", help=named)
    add("--dry-run", action="store_true", help="with set and undo: only check whether the run would accept the change")
    add("--why", metavar="TEXT", help="with set and undo: the reason, for the journal")
    add_client_options(parser)


def knobs(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    if args.action not in ("get", "set", "undo"):
        meant = f"knobs {'set' if '=' in args.action else 'get'} {args.action}"
        raise UsageError(f"knobs takes get, set or undo, got {args.action} (did you mean {meant}?)")
    for flag, given in (("--dry-run", args.dry_run), ("--why", args.why)):
        if given and args.action == "get":
            raise UsageError(f"{flag} goes with knobs set NAME=VALUE and knobs undo")
    changes = assignments(args.words) if args.action == "set" else {}
    query = {**({"dry_run": 1} if args.dry_run else {}), **({"why": args.why} if args.why else {})}
    with connect(args.run, args.url) as client:
        if args.action == "get":
            return get(client, args.words, args.json)
        if args.action == "undo":
            known = client.get("/knobs").body["knobs"]
            answer = client.post("/knobs/undo", None, **query, **event_named(args.words))
            changes = answer.body["changed"]
        else:
            answer, known = send_changes(client, changes, query)
    if args.json:
        print_json(answer.body)
    else:
        for line in change_lines(answer.body, changes, known, args.dry_run):
            print(printable(line))
    return 0


def get(client: Client, names: list[str], as_json: bool) -> int:
    """Print all knobs, or the named ones."""
    body = client.get("/knobs").body
    check_knob_names(names, body["knobs"])
    chosen = {name: about for name, about in body["knobs"].items() if name in names or not names}
    if as_json:
        print_json({**body, "knobs": chosen})
        return 0
    rows = [(name, *knob_cells(about)) for name, about in chosen.items()]
    if on_terminal():
        show(knob_blocks(rows))
    else:
        show(columns(("knob", "value", "default", "range", "unit", "what it does"), rows))
    return 0


def knob_cells(about: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Return value, default, range, unit and purpose of a knob."""
    now, wanted = text_to_type(about["effective"], about), text_to_type(about["desired"], about)
    value = now if now == wanted else f"{now} -> {wanted} pending"
    unit = "" if about["unit"] in ("bytes", "name") else about["unit"]
    return value, text_to_type(about["default"], about), limits(about), unit, about["why"]


def knob_blocks(rows: Iterable[Sequence[str]]) -> Any:
    """Return the knobs for a terminal, which is too narrow for all of a knob in one line."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value, default, span, unit, why in rows:
        more = [f"default {default}" if default != value else "", f"{span} {unit}".strip()]
        figures = Text.assemble((printable(value), "cyan"), *(f"   {printable(part)}" for part in more if part))
        table.add_row(printable(name), Group(figures, Text(printable(why), style="dim")))
    return table


def event_named(words: Sequence[str]) -> dict[str, int]:
    """Return the event to undo; nothing where none is named."""
    if len(words) > 1 or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"knobs undo takes the id of one event, got {' '.join(words)}")
    return {"event": int(words[0])} if words else {}


def send_changes(client: Client, changes: Mapping[str, str], query: Mapping[str, Any]) -> tuple[Reply, Mapping[str, Any]]:
    """Send the changes with the newest ETag; try again where another client changed a knob in between.

    Returns the answer, and the knobs as they were before.
    """
    from adaptive_rec.cli.client import ApiError

    for attempt in range(1, ATTEMPTS + 1):
        current = client.get("/knobs")
        known = current.body["knobs"]
        check_knob_names(changes, known)
        values = {name: value(typed, known[name]) for name, typed in changes.items()}
        try:
            return client.patch("/knobs", values, current.etag or "", **query), known
        except ApiError as error:
            if error.status != 412 or attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def change_lines(answer: Mapping[str, Any], names: Iterable[str], known: Mapping[str, Any], dry_run: bool) -> Iterator[str]:
    """Yield a line for every named knob."""
    step = answer.get("applied_at_step")
    pending = f"pending: {answer['reason']}" if answer.get("reason") else "pending"
    when = "would be accepted" if dry_run else pending if step is None else f"took effect at step {step}"
    for name in names:
        changed = answer["changed"].get(name)
        if changed:
            yield f"{name} {text_to_type(changed['old'], known[name])} -> {text_to_type(changed['new'], known[name])}, {when}"
        else:
            yield f"{name} is already {text_to_type(answer['desired'][name], known[name])}"


# Values --------------------------------------------------------------------------------------------------------------


def assignments(words: Iterable[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` words as a dict."""
    pairs = [word.partition("=") for word in words]
    if not pairs:
        raise UsageError("knobs set takes NAME=VALUE, one or more")
    for name, equals, typed in pairs:
        if not (name.strip() and equals and typed.strip()):
            raise UsageError(f"knobs set takes NAME=VALUE, got {name}{equals}{typed}")
    named = [name.strip() for name, _, _ in pairs]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice:
        raise UsageError(f"knobs set takes every knob once, got {twice} twice")
    return {name.strip(): typed.strip() for name, _, typed in pairs}


def check_knob_names(names: Iterable[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"unknown knob {name}{did_you_mean(name, known)} (knobs: {', '.join(known)})")


def value(typed: str, about: Mapping[str, Any]) -> Any:
    """Return a typed value for JSON: a TOML scalar, a size in bytes, else text; None stands for the default."""
    if typed == DEFAULT:
        return None
    size = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmg]|[kmgt]i)?b?", typed, re.IGNORECASE | re.ASCII)
    if about["unit"] == "bytes" and size:
        return round(float(size[1]) * UNITS[(size[2] or "").lower()])
    try:
        parsed = tomllib.loads(f"value = {toml_number(typed)}")
    except tomllib.TOMLDecodeError:
        return typed
    scalar = parsed["value"]
    if len(parsed) == 1 and isinstance(scalar, (str, int, float)) and (isinstance(scalar, str) or isfinite(scalar)):
        return scalar
    return typed  # JSON has no such value; the service refuses the text


def text_to_type(number: Any, about: Mapping[str, Any]) -> str:
    """Return a value as it could be typed; JSON writes infinity as null."""
    if about["unit"] == "bytes" and isinstance(number, int):
        return exact_size(number)
    return "infinite" if number is None else str(number)


def limits(about: Mapping[str, Any]) -> str:
    """Return the range of a knob, such as ``0 < .. <= 1``."""
    low, high = about["minimum"], about["maximum"]
    signs = ["<" if about[f"exclusive_{end}"] else "<=" for end in ("minimum", "maximum")]
    parts = []
    if low is not None and high is not None:
        parts.append(f"{low:g} {signs[0]} .. {signs[1]} {high:g}")
    elif low is not None:
        parts.append(f"{signs[0].replace('<', '>')} {low:g}")
    elif high is not None:
        parts.append(f"{signs[1]} {high:g}")
    return " or ".join([*parts, *([", ".join(map(str, about["choices"]))] if about["choices"] else [])])
