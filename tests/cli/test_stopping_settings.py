"""What --patience stands for, and what a run on files of one's own starts from: what the user names stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli.branch import train_arguments
from adaptive_rec.cli.stopping import EVALUATIONS, MOST_PASSES, PATIENCE, stopping_settings
from adaptive_rec.cli.train_settings import overrides
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import UsageError


def settings_of(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    args = train_arguments(["train", *words])
    found = stopping_settings(args, args.config, overrides(args))
    if not args.resume:
        load_config(args.config, environment, [*found, *overrides(args)])  # is valid
    return dict(each.split("=") for each in found)


OWN = ["--data", "x.csv", "--label", "y"]
ON = {"eval.mode": "validation", "eval.per_epoch": str(EVALUATIONS), "data.epochs": str(MOST_PASSES)}
DEFAULT = {"eval.patience": str(PATIENCE), **ON}


@pytest.mark.parametrize(
    ("words", "environment", "found"),
    [
        (OWN, {}, DEFAULT),
        (["--data", "x.csv", "--schema", "s.toml"], {}, DEFAULT),
        ([*OWN, "--set", "run.batch_size=64"], {}, DEFAULT),
        ([*OWN, "--steps", "10"], {}, {}),
        ([*OWN, "--set", "data.epochs=3"], {}, {}),
        ([*OWN, "--set", "eval.count=3"], {}, {}),
        (OWN, {"ADAPTIVE_REC_EVAL__COUNT": "3"}, {}),
        ([*OWN, "--set", "eval.mode=validation"], {}, {}),
        ([*OWN, "--set", "eval.metric=auc"], {}, DEFAULT),
        ([*OWN, "--set", "eval.validation_ratio=0.2"], {}, DEFAULT),
        ([*OWN, "--metrics", "gauc,recall@5", "--group", "g"], {}, DEFAULT),
        ([*OWN, "--set", "eval.batch_size=512"], {}, DEFAULT),
        ([*OWN, "--set", "eval.per_epoch=4"], {}, {key: DEFAULT[key] for key in DEFAULT if key != "eval.per_epoch"}),
        ([*OWN, "--set", "eval.patience=7"], {}, ON),
        ([*OWN, "--set", "eval.patience=0"], {}, {}),
        (["tiny", *OWN], {}, {}),
        ([*OWN, "--set", "data.order=time", "--set", "data.shuffle=false"], {}, {}),
        ([*OWN, "--follow"], {}, {}),
        ([*OWN, "--patience", "0"], {}, {"eval.patience": "0"}),
        (["--data", "criteo.txt"], {}, {}),
        (["tiny"], {}, {}),
        ([*OWN, "--patience", "5"], {}, {"eval.patience": "5", **ON}),
        ([*OWN, "--patience", "5", "--steps", "9"], {}, {"eval.patience": "5", **ON}),
        (["tiny", "--patience", "5"], {}, {"eval.patience": "5", **ON}),
        (["--patience", "5", "--set", "eval.every_steps=7", "--set", "data.epochs=2"], {},
         {"eval.patience": "5", "eval.mode": "validation"}),
        ([*OWN, "--patience", "5", "--follow"], {}, {"eval.patience": "5"}),
        ([*OWN, "--patience", "2", "--set", "data.order=time", "--set", "data.shuffle=false"], {},
         {"eval.patience": "2", "eval.mode": "validation", "eval.per_epoch": str(EVALUATIONS)}),
        (["--resume", "--out", "r", "--patience", "5"], {}, {"eval.patience": "5"}),
        (["--resume", "--out", "r", *OWN], {}, {}),
        (["--replay", "r"], {}, {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_the_user_names_stays(
    words: list[str], environment: dict[str, str], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(words, environment, monkeypatch) == found


@pytest.mark.parametrize("typed", ["-1", "x", "1.5", "1e3"])
def test_patience_is_a_whole_number(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--patience must be a whole number from 0"):
        settings_of([*OWN, f"--patience={typed}"], {}, monkeypatch)


def test_a_file_of_settings_is_one_that_the_user_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("[data]\nepochs = 4\n")
    found = settings_of([str(tmp_path / "mine.toml"), "--patience", "2"], {}, monkeypatch)
    assert found == {"eval.patience": "2", "eval.mode": "validation", "eval.per_epoch": str(EVALUATIONS)}
