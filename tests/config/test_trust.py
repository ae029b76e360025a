"""Which classes may be imported by the name that a setting gives."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from adaptive_rec.config.trust import TRUST, PluginTrust, settings_in, taken_out
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.live.sidecar_process import own_modules_only
from adaptive_rec.policy.find import load_policy


def allowed(words: list[str], name: str) -> bool:
    trust = PluginTrust()
    try:
        with trust.only(words):
            trust.check("knobs.policy", name)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(
    "words",
    [
        ["--policy", "own.rows:Rows"],
        ["--policy=own.rows:Rows"],
        ["--policies", "hybrid,own.rows:Rows,hotline"],
        ["--set", 'knobs.policy="own.rows:Rows"'],
        ["--set", "run.track=['tensorboard', 'own.rows:Rows']"],
        ["--trust-plugins"],
        ["--trust-plugins=other:Rows,own.rows:Rows"],
    ],
)
def test_a_class_that_the_command_line_names_is_allowed(words: list[str]) -> None:
    assert allowed(words, "own.rows:Rows")


@pytest.mark.parametrize(
    "words",
    [[], ["own.rows"], ["own.rows:Row"], ["my.own.rows:Rows"], ["--trust-plugins=own.rows:R"], ["trust-plugins"]],
)
def test_no_other_class_is_allowed(words: list[str]) -> None:
    assert not allowed(words, "own.rows:Rows")
    assert allowed(words, "hotline")


def test_a_name_that_a_shell_would_execute_is_no_advice() -> None:
    with TRUST.only([]), pytest.raises(ConfigError, match=r"(?m)got 'own:Rows; reboot'$"):
        load_policy("own:Rows; reboot")


def test_variables_of_the_configuration_name_classes_too() -> None:
    environment = {"ADAPTIVE_REC_KNOBS__POLICY": "own:Rows", "ADAPTIVE_REC_TOKEN": "a:B", "OTHER__NAME": "c:D"}
    assert settings_in(environment) == ["own:Rows"]


def test_another_process_is_given_the_same_trust_and_no_more() -> None:
    trust = PluginTrust()
    assert trust.words() == ["--trust-plugins"], "a program that uses the library decides by itself"
    with trust.only(["train", "--policy=own:Rows", "--track", "own:Notes", "--url=http://127.0.0.1:8470"]):
        assert trust.words() == ["--trust-plugins=own:Notes", "--trust-plugins=own:Rows"]
        with trust.only(["train"]):
            assert trust.words() == []
    assert trust.words() == ["--trust-plugins"]


def test_the_option_may_stand_anywhere_before_values() -> None:
    words = ["--trust-plugins", "train", "--trust-plugins=own:Rows", "--", "--trust-plugins"]
    assert taken_out(words) == ["train", "--", "--trust-plugins"]
    with pytest.raises(UsageError, match="--trust-plugins=NAME must be package.module:Class, .* got 'own.py'"):
        taken_out(["train", "--trust-plugins=own.py"])


def test_only_a_trusted_module_is_looked_for_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a client of a run asks for, too: `knobs set policy=...`."""
    base = "from adaptive_rec.policy import Policy\nopen('executed', 'a').close()\nclass Rows(Policy):\n    name = 'rows'\n"
    (tmp_path / "rows_of_mine.py").write_text(base)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    with TRUST.only(["train"]), pytest.raises(ConfigError, match=r"(?m)add --trust-plugins=rows_of_mine:Rows$"):
        load_policy("rows_of_mine:Rows")
    assert not (tmp_path / "executed").exists()
    assert str(tmp_path) not in sys.path
    with TRUST.only(["train", "--policy=rows_of_mine:Rows"]):
        assert load_policy("rows_of_mine:Rows").name == "rows"
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["rows_of_mine"]


def test_helper_processes_take_no_module_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty place in PYTHONPATH means it, as `PYTHONPATH=$PYTHONPATH:/more` has where there was none."""
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/more{os.pathsep}")
    given = own_modules_only()
    assert given["PYTHONSAFEPATH"] == "1"
    assert given["PYTHONPATH"].split(os.pathsep) == [str(Path(__file__).parents[2]), "/more"]
