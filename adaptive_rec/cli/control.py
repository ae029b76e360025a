"""``pause``, ``resume``, ``stop``, ``reclassify`` and ``checkpoint``: commands to a run under way."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from adaptive_rec.cli.checkpoint import add_checkpoint_commands
from adaptive_rec.cli.output import print_json
from adaptive_rec.cli.parser import add_client_options, add_command
from adaptive_rec.units import printable, whole

COMMANDS = {
    "pause": ("pause training; its service still answers", "paused at step {step}"),
    "resume": ("resume a paused run", "resumed at step {step}"),
    "stop": ("stop a run after the step, with a checkpoint and a summary", "stopping at step {step}"),
    "reclassify": ("choose the hot rows now instead of at the end of the window", "reclassified at step {step}"),
    "checkpoint": (
        "write a checkpoint now; or list, verify, compare, export, import checkpoints",
        "checkpoint {checkpoint} written at step {step}",
    ),
}
"""The help of each command, and the line printed once it is done."""


def add_commands(subparsers: Any) -> None:
    for name, (purpose, _) in COMMANDS.items():
        parser = add_command(subparsers, name, control, purpose)
        parser.set_defaults(name=name)
        add_client_options(parser)
    add_checkpoint_commands(subparsers.choices["checkpoint"])


def control(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    with connect(args.run, args.url) as client:
        answer = client.post(f"/control/{args.name}").body
    if args.json:
        print_json(answer)
    else:
        print(printable(outcome(args.name, answer)))
    return 0


def outcome(name: str, answer: Mapping[str, Any]) -> str:
    """Return what happened, or that it will."""
    if answer.get("step") is None:
        return f"{name} is pending: {answer.get('reason') or 'it happens at the next step boundary'}"
    step, checkpoint = whole(answer["step"]), answer.get("checkpoint") or ""
    return " ".join(COMMANDS[name][1].format(step=step, checkpoint=checkpoint).split())
