"""Suggestions in errors."""

from __future__ import annotations

import pytest

from adaptive_rec.cli.commands import COMMANDS, add_all_commands
from adaptive_rec.cli.parser import Parser
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import did_you_mean


def test_the_table_of_commands_has_what_their_modules_add() -> None:
    subparsers = Parser(prog="adaptive-rec").add_subparsers()
    add_all_commands(subparsers)
    assert list(subparsers.choices) == list(COMMANDS)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("help", ""), ("trian", "train"), ("stat", "status"), ("evaluate", "eval"), ("quit", ""), ("version", ""), ("list", "")],
)
def test_a_command_is_suggested_where_it_is_near(typed: str, meant: str) -> None:
    assert did_you_mean(typed, COMMANDS) == (f"; did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("steps", ""), ("alfa", "alpha"), ("budget", "hot_budget_bytes"), ("prefetch", "prefetch_depth"), ("seed", ""), ("", "")],
)
def test_a_knob_is_suggested_where_it_is_near_or_named_in_part(typed: str, meant: str) -> None:
    assert did_you_mean(typed, Knobs.model_fields) == (f"; did you mean {meant}?" if meant else "")


def test_a_column_is_suggested_by_its_name_in_a_header_that_also_says_its_kind() -> None:
    """RecBole's files (1.2.1) name columns so."""
    assert did_you_mean("label", ["user_id:token", "label:float"]) == "; did you mean label:float?"
    assert did_you_mean("user_id", ["user_id:token", "label:float"]) == "; did you mean user_id:token?"
