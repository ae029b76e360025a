"""Links in a run directory, which may be somebody else's: none of them leads a write elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from adaptive_rec.checkpoint.sharing import SharedFiles
from adaptive_rec.cli import main
from adaptive_rec.cli.compare import make_comparison_folder
from adaptive_rec.errors import CheckpointError, UsageError
from adaptive_rec.run.new_directory import WRITTEN, sole_writer
from adaptive_rec.system.own_files import open_own
from tests.finished_runs import FinishedRun


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's own, elsewhere."""
    path = tmp_path / "own.txt"
    path.write_text("mine\n")
    return path


def replace_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def test_what_a_run_writes_is_listed(run: Path) -> None:
    assert {path.name for path in run.iterdir()} <= set(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_is_not_resumed_through_a_link(run: Path, victim: Path, name: str) -> None:
    replace_by_link(run / name, victim)
    rule = rf"{run / name} must not be a symbolic link \(it points to {victim}\): the run writes to it"
    with pytest.raises(UsageError, match=rule):
        sole_writer(run)
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("name", ["pool-0", "pool-7", "rank-0", "rank-1/pool-0", "kept-x"])
def test_rows_of_another_run_are_not_reached_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    """They would be removed, as no checkpoint of this run needs them."""
    other = tmp_path / "other"
    other.mkdir()
    (run / "rows" / name).parent.mkdir(parents=True)
    (run / "rows" / name).symlink_to(other)
    with pytest.raises(
        UsageError, match=rf"{run / 'rows' / name} must not be a symbolic link \(it points to {other}\): the run writes to it"
    ):
        sole_writer(run)


def test_nothing_waits_for_a_pipe(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("metrics.jsonl", "events.jsonl", "summary.json"):
        (run / name).unlink()
        os.mkfifo(run / name)
    assert main(["report", str(run), "--out", str(tmp_path / "r.html")]) == 0
    assert main(["train", "--no-serve", "--resume", "--out", str(run)]) == 2
    assert f"{run / 'events.jsonl'} must be a regular file" in capsys.readouterr().err
    assert main(["train", "--no-serve", "--replay", str(run), "--out", str(tmp_path / "new")]) == 3
    assert f"{run / 'events.jsonl'} must be a regular file, it is a pipe" in capsys.readouterr().err
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    assert main(["serve", str(run), "--port=0"]) == 2


def test_checkpoints_of_another_run_are_not_pruned(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(trained, tmp_path / "other") / "checkpoints"
    replace_by_link(run / "checkpoints", other)
    before = sorted(other.rglob("*"))
    assert main(["train", "--no-serve", "--resume", "--out", str(run), "--steps=9"]) == 2
    assert f"{run / 'checkpoints'} must not be a symbolic link" in capsys.readouterr().err
    assert sorted(other.rglob("*")) == before


def test_what_is_no_checkpoint_keeps_no_checkpoint_from_being_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link in the place of an old one goes, not what it leads to."""
    (other := tmp_path / "other").mkdir()
    (other / "own.txt").write_text("mine\n")
    checkpoints = run / "checkpoints"
    for name in ("step-000000001", "step-000000099", ".step-000000001.removed"):
        (checkpoints / name).symlink_to(other)
    (checkpoints / "step-000000001.1").symlink_to(tmp_path / "gone")
    (checkpoints / "step-000000001.2").write_text("")
    (checkpoints / ".step-000000003.draft").write_text("")
    os.mkfifo(checkpoints / ".step-000000003.removed")
    words = ["train", "--no-serve", "--resume", "--out", str(run), "--steps=12", "--set=checkpoint.keep=2"]
    assert main(words) == 0
    assert "could not be removed" not in "".join(capsys.readouterr())
    found = {each.name for each in checkpoints.iterdir()}
    assert {"step-000000010", "step-000000012", "step-000000099.set-aside"} <= found
    assert not {name for name in found if name.startswith((".", "step-000000001"))}
    assert (other / "own.txt").read_text() == "mine\n"


def test_runs_of_a_comparison_are_not_removed_through_a_link(trained: Path, tmp_path: Path) -> None:
    """A run that is made again is removed first."""
    (tmp_path / "conditions.json").write_text("{}")
    (tmp_path / "runs").symlink_to(trained.parent)
    with pytest.raises(UsageError, match=f"{tmp_path / 'runs'} must not be a symbolic link"):
        make_comparison_folder(tmp_path)


@pytest.mark.parametrize("name", ["report.html", ".report.html.part"])
def test_a_report_replaces_a_link(run: Path, victim: Path, name: str) -> None:
    replace_by_link(run / name, victim)
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert not (run / "report.html").is_symlink()
    assert victim.read_text() == "mine\n"


def test_a_finished_run_is_not_served_with_a_log_elsewhere(
    run: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "sidecar.log").symlink_to(victim)
    assert main(["serve", str(run), "--port=0"]) == 2
    assert f"{run / 'sidecar.log'} must not be a symbolic link" in capsys.readouterr().err
    assert victim.read_text() == "mine\n"


def test_only_a_regular_file_is_written_to(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name, rule in (("link", f"must not be a symbolic link.*{victim}"), ("pipe", "must be a regular file")):
        for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND):
            with pytest.raises(OSError, match=rule):
                open_own(tmp_path / name, flags)
    os.close(open_own(victim, os.O_WRONLY | os.O_APPEND))


def test_a_run_directory_that_is_reached_through_a_link_is_used(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`runs` on a larger disk, and a name for the newest run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "large" / "one")
    os.symlink("large", "runs")
    os.symlink("one", "large/newest")
    assert main(["train", "--no-serve", "--resume", "--out", "runs/newest", "--steps=6"]) == 0
    assert main(["report", "runs/newest"]) == 0
    assert (tmp_path / "large" / "one" / "checkpoints" / "step-000000006").is_dir()


@pytest.mark.parametrize("name", ["run.json", "summary.json", "metrics.jsonl", "events.jsonl", "serve.json"])
@pytest.mark.parametrize(
    "words",
    [["report", "--out", "r.html"], ["branch", "--no-train", "--out", "b"], ["train", "--no-serve", "--resume"]],
)
def test_no_command_waits_for_a_pipe(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    code = main([*words, "--out" if words[0] == "train" else "--", str(run)])
    assert code in ((0,) if words[0] == "report" else (0, 2, 3))


@pytest.mark.parametrize("name", ["run.json", "serve.json"])
def test_values_that_are_nested_too_deep_are_an_error_of_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (run / name).write_text("[" * 100_000)
    if name == "serve.json":
        assert main(["train", "--resume", "--out", str(run)]) == 2
    else:
        assert main(["branch", str(run), "--no-train", "--out", str(tmp_path / "new")]) == 0, "as if there were none"
        capsys.readouterr()
        assert main(["serve", str(run), "--port=0"]) == 1
    assert f"{run / name} must be " in (text := capsys.readouterr().err)
    assert "values must not be nested so deep" in text


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_rows_on_a_disk_are_read_from_files_of_their_own(
    tmp_path: Path, finished_run: FinishedRun, victim: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """A branch would have the file that a link leads to, with a name of its own."""
    run = finished_run("disk")
    segment = sorted(run.glob("rows/pool-*/*.rows"))[0]
    size_bytes = segment.stat().st_size
    segment.unlink()
    if what == "link":
        os.truncate(victim, size_bytes)
        segment.symlink_to(victim)
    else:
        os.mkfifo(segment)
    words = (["branch", str(run), "--no-train"], ["eval", str(run)], ["checkpoint", "verify", str(run)])
    for each in words:
        capsys.readouterr()
        assert main([*each, *(["--out", str(tmp_path / "branch")] if each[0] == "branch" else [])]) == 5
        assert segment.name in "".join(capsys.readouterr())
    assert not (tmp_path / "branch").exists()
    assert main(["checkpoint", "list", str(run)]) == 0
    assert segment.name in capsys.readouterr().out
    assert victim.stat().st_nlink == 1


def test_nothing_that_a_link_leads_to_is_shared(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    (tmp_path / "link").symlink_to(victim)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=str(tmp_path / "link")):
            SharedFiles().add(tmp_path / "link", tmp_path / "new", 1)
        assert not (tmp_path / "new").exists()
        monkeypatch.setattr(os, "link", refused)
