"""The list of the checkpoints that a run can go back to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from adaptive_rec.checkpoint import history, listing
from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.manifest import FileEntry, Manifest, Since, sealed
from adaptive_rec.cli import main


def save(run: Path, name: str, since: tuple[str, str] | None = None, content: bytes = b"{}") -> str:
    """Write a checkpoint of one file, and return the crc32 of its manifest."""
    folder = run / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "state.json").write_bytes(content)
    entry = FileEntry(name="state.json", size_bytes=len(content), crc32=f"{crc32(content):08x}")
    older = None if since is None else Since(name=since[0], crc32=since[1])
    step = int(name.removeprefix("step-").partition(".")[0])
    data = sealed(Manifest(step=step, description={}, files=(entry,), since=older), folder / "MANIFEST.json")
    (folder / "MANIFEST.json").write_bytes(data)
    os.utime(folder / "MANIFEST.json", (1_700_000_000, 1_700_000_000 + step))
    return data[-11:-3].decode()


def test_checkpoints_are_listed_with_the_evaluation_before_each(client: Any, run: Any) -> None:
    assert client.get("/api/v1/checkpoints").json() == {"checkpoints": [], "total": 0}
    base = save(run.folder, "step-000000010")
    save(run.folder, "step-000000030", ("step-000000010", base))
    save(run.folder, "step-000000030.1")
    for step in (20, 30, 40):
        run.append("metrics.jsonl", {"event": "evaluation", "step": step, "auc": step / 100, "logloss": 0.5})
    answer = client.get("/api/v1/checkpoints").json()
    assert [each["name"] for each in answer["checkpoints"]] == ["step-000000030.1", "step-000000030", "step-000000010"]
    assert answer["checkpoints"][1] == {
        "name": "step-000000030",
        "step": 30,
        "written": "2023-11-14T22:13:50+00:00",
        "kind": "changes",
        "builds_on": "step-000000010",
        "size_bytes": 2,
        "error": None,
        "not_looked_at": None,
        "evaluation": {"step": 30, "auc": 0.3, "logloss": 0.5, "metrics": None},
    }
    assert answer["checkpoints"][2]["evaluation"] is None
    few = client.get("/api/v1/checkpoints?limit=1").json()
    assert ([each["name"] for each in few["checkpoints"]], few["total"]) == (["step-000000030.1"], 3)


def test_damage_that_shows_without_reading_is_named(client: Any, run: Any) -> None:
    base = save(run.folder, "step-000000010")
    save(run.folder, "step-000000020", ("step-000000010", base))
    save(run.folder, "step-000000030")
    save(run.folder, "step-000000040")
    checkpoints = run.folder / "checkpoints"
    (checkpoints / "step-000000010" / "state.json").write_bytes(b"")
    (checkpoints / "step-000000030" / "MANIFEST.json").write_bytes(b"{}")
    found = client.get("/api/v1/checkpoints").json()["checkpoints"]
    assert [(each["step"], each["error"] and each["error"].replace(str(run.folder), "")) for each in found] == [
        (40, None),
        (30, "step-000000030/MANIFEST.json must end with its crc32: it was cut off, or is another kind of file"),
        (20, "step-000000020 builds on step-000000010: step-000000010/state.json must have 2 bytes, got 0"),
        (10, "step-000000010/state.json must have 2 bytes, got 0"),
    ]


def test_a_chain_that_takes_too_long_is_no_damage(
    client: Any, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each manifest takes a second, as large ones of a stranger do: a list ends within one checkpoint, and knows no error."""
    since = None
    for step in range(1, 6):
        since = f"step-{step:09d}", save(run.folder, f"step-{step:09d}", since)
    clock = [0.0]

    def slow(files: Files, generation: Path) -> Manifest:
        files.read(generation / "MANIFEST.json")
        clock[0] += 1
        return read_manifest(DISK, generation)

    monkeypatch.setattr(listing, "monotonic", lambda: clock[0])
    monkeypatch.setattr(history, "read_manifest", slow)
    found = client.get("/api/v1/checkpoints").json()["checkpoints"]
    why = "the list took longer than 2 s"
    assert [(each["step"], each["error"], each["not_looked_at"]) for each in found] == [
        (step, None, why) for step in (5, 4, 3, 2, 1)
    ]
    assert (found[0]["kind"], found[-1]["kind"]) == ("changes", None)
    clock[0] = 0.0
    assert main(["checkpoint", "list", str(run.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [f"step-{step:09d}" for step in range(1, 6)]
    assert all(line.endswith(f"not looked at: {why}") for line in lines)


def test_each_manifest_of_a_long_chain_is_read_once(client: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    since, read = None, []
    for step in range(1, 31):
        since = f"step-{step:09d}", save(run.folder, f"step-{step:09d}", since)
    monkeypatch.setattr(
        history, "read_manifest", lambda files, path: (read.append(path.name), read_manifest(files, path))[1]
    )
    found = client.get("/api/v1/checkpoints").json()["checkpoints"]
    assert [each["error"] or each["not_looked_at"] for each in found] == [None] * 30
    assert len(read) == 30


def test_a_folder_that_cannot_be_listed_is_named(client: Any, run: Any) -> None:
    (run.folder / "checkpoints").write_text("")
    answer = client.get("/api/v1/checkpoints")
    assert (answer.status_code, "the checkpoints cannot be listed: " in answer.json()["detail"]) == (404, True)
