"""Options that leave one another without effect are refused by name, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptive_rec.cli import main

SERVED = "is for the dashboard and the API and --no-serve starts none; give one of them"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            "train tiny --restarts 3",
            "--restarts starts several processes again: --processes must be at least 2 with it, got 1",
        ),
        ("train tiny --no-serve --host ::1", f"--host {SERVED}"),
        ("train tiny --no-serve --port 0", f"--port {SERVED}"),
        ("train tiny --no-serve --allow-host box", f"--allow-host {SERVED}"),
        ("train tiny --no-serve --token-file token", f"--token-file {SERVED}"),
        ("train tiny --no-serve --linger", f"--linger {SERVED}"),
        ("branch run --out new --no-serve --port 1", f"--port {SERVED}"),
        ("branch run --out new --restarts 1", "--restarts starts several processes again"),
        ("train tiny --json --print-config", "--json and --print-config must not be given together"),
        ("train tiny --dry-run --print-config", "--dry-run and --print-config must not be given together"),
        ("train tiny --verify --dry-run", "--verify and --dry-run must not be given together"),
        (
            "train tiny --set data.train_range=[0,0.5]",
            "data.train_range must be [0.0, 0.9] where data.source is synthetic",
        ),
        (
            "compare tiny --set data.test_range=[0.95,1]",
            "data.test_range must be [0.9, 1.0] where data.source is synthetic",
        ),
        (
            "compare tiny --policies hybrid,fae --variant newest:data.train_range=[0.3,0.9]",
            "data.train_range must be [0.0, 0.9] where data.source is synthetic",
        ),
    ],
)
def test_an_option_without_effect_is_refused_by_name(
    words: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert f"error: {rule}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--processes=2", "--detach"])
def test_processes_of_another_launcher_start_no_more(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "tiny", option, f"--out={tmp_path / 'run'}"]) == 2
    rule = f"{option.partition('=')[0]} must be left out where a launcher starts the processes (WORLD_SIZE is 2), got"
    assert rule in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
