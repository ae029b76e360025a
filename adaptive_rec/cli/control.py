"""``pause``, ``resume``, ``stop``, ``reclassify`` and ``checkpoint``: what a run under way can be told to do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from adaptive_rec.cli.checkpoint import add_checkpoint_commands
from adaptive_rec.cli.output import print_json
from adaptive_rec.cli.parser import Parser, add_client_options
from adaptive_rec.units import printable, whole

COMMANDS = {
    "pause": ("pause training; its service keeps answering", "paused at step {step}"),
    "resume": ("go on after a pause", "resumed at step {step}"),
    "stop": ("end a run in good order, with a checkpoint and a summary", "stopping at step {step}"),
    "reclassify": ("decide now which rows are hot, not at the window's end", "reclassified at step {step}"),
    "checkpoint": (
        "write a checkpoint now; list, verify, compare, export them",
        "checkpoint {checkpoint} written at step {step}",
    ),
}
"""Help and what is printed once it is done."""


def add_commands(subparsers: Any) -> dict[str, Parser]:
    commands = {}
    for name, (what, _) in COMMANDS.items():
        parser: Parser = subparsers.add_parser(name, help=what)
        parser.set_defaults(command=control, name=name)
        add_client_options(parser)
        commands[name] = parser
    add_checkpoint_commands(commands["checkpoint"])
    return commands


def control(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    with connect(args.run, args.url) as client:
        answer = client.post(f"/control/{args.name}").body
    if args.json:
        print_json(answer)
    else:
        print(printable(told(args.name, answer)))
    return 0


def told(name: str, answer: Mapping[str, Any]) -> str:
    """What has happened, or that it will."""
    if answer.get("step") is None:
        return f"{name} asked for; it happens at the next step boundary (adaptive-rec status shows it)"
    step, checkpoint = whole(answer["step"]), answer.get("checkpoint") or ""
    return " ".join(COMMANDS[name][1].format(step=step, checkpoint=checkpoint).split())
