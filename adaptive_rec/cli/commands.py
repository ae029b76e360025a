"""The commands, and the modules that add them to a parser: only that of the given command is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS = {
    "train": "train",
    "branch": "branch",
    "data": "data",
    "status": "status",
    "knobs": "knobs",
    "placement": "placement",
    "pause": "control",
    "resume": "control",
    "stop": "control",
    "reclassify": "control",
    "checkpoint": "control",
    "rollback": "control",
    "runs": "runs",
    "dashboard": "runs",
    "serve": "runs",
    "eval": "runs",
    "report": "runs",
    "predict": "predict",
    "export": "export",
    "nearest": "export",
    "profile": "profile",
    "plan": "plan",
    "compare": "compare",
    "simulate": "simulate",
    "calibrate": "calibrate",
    "doctor": "doctor",
}
"""The commands in the order of the help, and the module of each."""


def add_all_commands(subparsers: Any) -> None:
    """Add every command, as the help lists them."""
    for module in dict.fromkeys(COMMANDS.values()):
        _add(module, subparsers)


def add_commands_beside(name: str, subparsers: Any) -> None:
    """Add the command of this name, with the others of its module."""
    _add(COMMANDS[name], subparsers)


def _add(module: str, subparsers: Any) -> None:
    import_module(f"adaptive_rec.cli.{module}").add_commands(subparsers)
