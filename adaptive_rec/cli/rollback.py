"""``rollback``: returns a run under way to an earlier checkpoint of its own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from adaptive_rec.cli.knobs import assignments, check_knob_names, value
from adaptive_rec.cli.output import print_json
from adaptive_rec.cli.parser import add_client_options, add_command
from adaptive_rec.errors import UsageError
from adaptive_rec.units import printable, whole

EXAMPLES = """\
examples:
  adaptive-rec rollback                                  to the newest checkpoint
  adaptive-rec rollback --to 4000                        to the newest checkpoint at or before step 4000
  adaptive-rec rollback --to step-000004000.1            to one by its name (checkpoint list RUN shows them)
  adaptive-rec rollback --skip-data --set lr_factor=0.5 --why "loss spikes"
"""


def add_commands(subparsers: Any) -> None:
    purpose = "return a run under way to an earlier checkpoint; newer ones are removed"
    parser = add_command(subparsers, "rollback", rollback, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add(
        "--to",
        metavar="STEP|NAME",
        help="the newest checkpoint at or before a step, or one by its name (default: the newest)",
    )
    add("--skip-data", action="store_true", help="do not train again on what was trained since that checkpoint")
    add(
        "--set",
        metavar="KNOB=VALUE",
        action="append",
        default=[],
        help="a knob, changed before the next step (repeatable)",
    )
    add("--why", metavar="TEXT", help="the reason, for the journal")
    add_client_options(parser)


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
        answer = client.post("/control/rollback", body).body
    if args.json:
        print_json(answer)
    else:
        print(printable(rollback_outcome(answer)))
    return 0


def place(to: str | None) -> dict[str, Any]:
    """Return the checkpoint that was named, as the service takes it."""
    if to is None:
        return {}
    if to.isascii() and to.isdigit():
        return {"to_step": int(to)}
    if not to.startswith("step-"):
        raise UsageError(f"--to must be a step or the name of a checkpoint (step-...), got {to}")
    return {"checkpoint": to}


def rollback_outcome(answer: Mapping[str, Any]) -> str:
    """Return what happened, or that it will."""
    if answer.get("step") is None:
        return f"rollback is pending: {answer.get('reason') or 'it happens at the next step boundary'}"
    return f"went back from step {whole(answer['from_step'])} to {answer['checkpoint']}, step {whole(answer['step'])}"
