"""``pause``, ``resume``, ``stop``, ``reclassify``, ``checkpoint`` and ``rollback``: commands to a run under way."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from adaptive_rec.cli.checkpoint import add_checkpoint_commands
from adaptive_rec.cli.knobs import assignments, check_knob_names, value
from adaptive_rec.cli.output import print_json
from adaptive_rec.cli.parser import add_client_options, add_command
from adaptive_rec.errors import UsageError
from adaptive_rec.units import printable, whole

OUTCOMES = {
    "pause": "paused at step {step}",
    "resume": "resumed at step {step}",
    "stop": "stopping at step {step}",
    "reclassify": "reclassified at step {step}",
    "checkpoint": "checkpoint {checkpoint} written at step {step}",
    "rollback": "went back from step {from_step} to {checkpoint}, step {step}",
}
"""The line printed once a command is done."""

PURPOSES = {
    "pause": "pause training; its service still answers",
    "resume": "resume a paused run",
    "stop": "stop a run after the step, with a checkpoint and a summary",
    "reclassify": "choose the hot rows now instead of at the end of the window",
    "checkpoint": "write a checkpoint now; or list, verify, compare, export, import checkpoints",
}

EXAMPLES = """\
examples:
  adaptive-rec rollback                                  to the newest checkpoint
  adaptive-rec rollback --to 4000                        to the newest checkpoint at or before step 4000
  adaptive-rec rollback --to step-000004000.1            to one by its name (checkpoint list RUN shows them)
  adaptive-rec rollback --skip-data --set lr_factor=0.5 --why "loss spikes"
"""


def add_commands(subparsers: Any) -> None:
    for name, purpose in PURPOSES.items():
        parser = add_command(subparsers, name, control, purpose)
        parser.set_defaults(name=name)
        add_client_options(parser)
    add_checkpoint_commands(subparsers.choices["checkpoint"])
    purpose = "return a run under way to an earlier checkpoint; newer ones are removed"
    parser = add_command(subparsers, "rollback", rollback, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    named = "the newest checkpoint at or before a step, or one by its name (default: the newest)"
    add("--to", metavar="STEP|NAME", help=named)
    add("--skip-data", action="store_true", help="do not train again on what was trained since that checkpoint")
    changed = "a knob, changed before the next step (repeatable)"
    add("--set", metavar="KNOB=VALUE", action="append", default=[], help=changed)
    add("--why", metavar="TEXT", help="the reason, for the journal")
    add_client_options(parser)


def control(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    with connect(args.run, args.url) as client:
        return print_outcome(args.name, client.post(f"/control/{args.name}").body, args.json)


def rollback(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    typed = assignments(args.set) if args.set else {}
    with connect(args.run, args.url) as client:
        body: dict[str, Any] = {**place(args.to), "skip_data": args.skip_data}
        if typed:
            known = client.get("/knobs").body["knobs"]
            check_knob_names(typed, known)
            body["knobs"] = {name: value(text, known[name]) for name, text in typed.items()}
        if args.why:
            body["why"] = args.why
        return print_outcome("rollback", client.post("/control/rollback", body).body, args.json)


def place(to: str | None) -> dict[str, Any]:
    """Return the checkpoint that was named, as the service takes it."""
    if to is None:
        return {}
    if to.isascii() and to.isdigit():
        return {"to_step": int(to)}
    if not to.startswith("step-"):
        raise UsageError(f"--to must be a step or the name of a checkpoint (step-...), got {to}")
    return {"checkpoint": to}


def print_outcome(name: str, answer: Mapping[str, Any], as_json: bool) -> int:
    """Print what happened, or that it will."""
    if as_json:
        print_json(answer)
    elif answer.get("step") is None:
        print(printable(f"{name} is pending: {answer.get('reason') or 'it happens at the next step boundary'}"))
    else:
        steps = {key: whole(answer[key]) for key in ("step", "from_step") if key in answer}
        line = OUTCOMES[name].format(checkpoint=answer.get("checkpoint") or "", **steps)
        print(printable(" ".join(line.split())))
    return 0
