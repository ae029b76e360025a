"""`train --resume | --replay RUN --dry-run` over a run that cannot go on: it is refused as the run itself would be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests.run.spoilt_commands import contents


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def no_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def spoil_manifests(path: Path) -> None:
    for manifest in path.rglob("MANIFEST.json"):
        manifest.write_text("{}")


PARENT = text(json.dumps({"parent": {"run": "x", "checkpoint": "../x", "step": 1, "seconds": 0, "samples_seen": 0}}))


@pytest.mark.parametrize(
    ("option", "file", "spoil"),
    [
        ("--replay", "events.jsonl", folder),
        ("--replay", "events.jsonl", text("[[\n{}\n")),
        ("--replay", "events.jsonl", Path.unlink),
        ("--resume", "events.jsonl", folder),
        ("--resume", "events.jsonl", text('{"kind": "started", "step": 0, "details": {"replays": "/gone"}}\n')),
        ("--resume", "run.json", folder),
        ("--resume", "run.json", PARENT),
        ("--resume", "metrics.jsonl", folder),
        ("--resume", "checkpoints", no_folder),
        ("--resume", "checkpoints", spoil_manifests),
    ],
)
def test_a_dry_run_is_refused_as_the_run_is(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    file: str,
    spoil: Callable[[Path], object],
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    words = ["train", "--no-serve", option]
    words += [str(run), "--out", str(tmp_path / "again")] if option == "--replay" else ["--out", str(run), "--steps=6"]
    assert main([*words, "--dry-run"]) == 0
    spoil(run / file)
    before, errors = contents(run), []
    capsys.readouterr()
    for more in (["--dry-run"], []):
        assert main([*words, *more]) not in (0, 1)
        errors.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")])
        if more:
            assert contents(run) == before
            assert not (tmp_path / "again").exists()
    [said], [real] = errors
    assert str(run / file) in said or "/gone" in said
    assert said == real or file == "checkpoints"


def test_several_processes_are_refused_by_the_bytes_of_a_ranks_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "tiny", "--no-serve", "--dry-run", "--processes=2", "--policy=device_only", "--set=run.host_memory=16KiB"]
    assert main(words) == 2
    assert "error: hot rows must fit in run.host_memory=16KiB, policy device_only wants " in capsys.readouterr().err


def test_windows_without_a_length_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    words = ["train", "tiny", "--no-serve", "--set=eval.mode=next_window", "--set=data.shuffle=false"]
    assert [main([*words, *more]) for more in (["--dry-run"], [f"--out={tmp_path / 'run'}"])] == [2, 2]
    assert not (tmp_path / "run").exists()
