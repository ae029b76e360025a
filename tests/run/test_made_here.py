"""Settings of a run's directory that lead out of it: they are followed where this user has given them for this directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptive_rec.checkpoint.manifest import Manifest, sealed
from adaptive_rec.cli import main
from adaptive_rec.errors import UsageError
from adaptive_rec.run import external_paths, resume
from adaptive_rec.run.external_paths import sign, signed_settings
from adaptive_rec.run.serving import agreed_options, keep_options
from tests.settings import TINY

SETTINGS = [
    f"--set={each}"
    for each in (
        *TINY,
        "run.steps=4",
        "checkpoint.every_steps=2",
        "run.host_memory=64KiB",
        "knobs.hot_budget_bytes=16KiB",
    )
]
Resume = Callable[..., str]


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its rows in a folder beside its directory."""
    folder = tmp_path_factory.mktemp("made")
    words = ["train", "--no-serve", "--out", str(folder / "run"), f"--set=run.disk={folder / 'rows'}", *SETTINGS]
    assert main(words) == 0
    assert files_in(folder / "rows")
    return folder / "run"


@pytest.fixture
def resumed(capsys: pytest.CaptureFixture[str]) -> Resume:
    """Resumes a run for two more steps. Returns the error that it ends with."""

    def resume_run(run: Path, *words: str, steps: int = 6) -> str:
        capsys.readouterr()
        code = main(["train", "--resume", "--out", str(run), "--no-serve", f"--steps={steps}", *words])
        error = capsys.readouterr().err
        assert (code == 0) == ("error: " not in error), error
        return error.partition("error: ")[2]

    return resume_run


def test_rows_elsewhere_are_followed_by_the_run_that_was_given_them(
    trained: Path, tmp_path: Path, resumed: Resume, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy, and a directory that somebody else made, name the folder too, and a replay and a branch would begin in it."""
    rows = trained.parent / "rows"
    copy = shutil.copytree(trained, tmp_path / "copy")
    before = files_in(rows)
    assert f"add --set run.disk={rows}" in resumed(copy)
    (copy / external_paths.NAME).write_text((copy / external_paths.NAME).read_text().replace(str(trained), str(copy)))
    assert f"add --set run.disk={rows}" in resumed(copy)
    for words in (["train", "--no-serve", "--replay"], ["branch", "--no-train"]):
        capsys.readouterr()
        assert main([*words, str(trained), "--out", str(tmp_path / "new")]) == 2
        assert f"give {tmp_path / 'new'} a folder of its own: --set run.disk=DIR" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
    assert files_in(rows) == before
    assert resumed(trained) == ""
    moved = trained.rename(trained.with_name("moved"))
    assert f"add --set run.disk={rows}" in resumed(moved, steps=8)
    assert resumed(moved, f"--set=run.disk={rows}", steps=8) == ""
    assert resumed(moved, steps=10) == ""
    moved.rename(trained)


def test_a_relative_folder_of_rows_holds_from_any_working_directory(
    trained: Path, tmp_path: Path, resumed: Resume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--no-serve", "--out", "run", "--set=run.disk=rows", *SETTINGS]) == 0
    run, kept = tmp_path / "run", tmp_path / "run" / "config.toml"
    monkeypatch.chdir("/")
    assert resumed(run) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "run"]
    kept.write_text(kept.read_text().replace(f'"{tmp_path}/rows"', '"rows"'))  # as older versions wrote it
    assert (
        f"got rows: it was {tmp_path}/rows from the working directory in which you gave it; if it is right, add "
        in (error := resumed(run, steps=8))
    )
    assert resumed(run, error.split(" add --set ")[1].strip().join(("--set=", "")), steps=8) == ""


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_file_of_another_run_leads_to_no_folder_of_rows(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """As CONFIG of a new run. A folder without rows would be taken."""
    run, elsewhere = shutil.copytree(trained, tmp_path / "run"), tmp_path / "elsewhere"
    kept = run / "config.toml"
    kept.write_text(kept.read_text().replace(str(trained.parent / "rows"), str(elsewhere)))
    out = f"--out={tmp_path / 'new'}"
    assert main([command, str(kept), out]) == 2
    rule = "run.disk must be given by you" if command == "train" else "run.disk must be empty where runs are compared"
    assert f"error: {rule}" in capsys.readouterr().err
    assert not elsewhere.exists()
    assert command == "compare" or main([command, str(kept), out, "--no-serve", "--set=run.disk="]) == 0
    assert not elsewhere.exists()


def test_a_branch_goes_on_in_the_folder_that_it_was_given(trained: Path, tmp_path: Path, resumed: Resume) -> None:
    sign(trained, rows=[trained.parent / "rows"])
    words = [
        "branch",
        str(trained),
        "--no-train",
        "--out",
        str(tmp_path / "new"),
        f"--set=run.disk={tmp_path / 'rows'}",
    ]
    assert main(words) == 0
    assert resumed(tmp_path / "new", steps=16) == ""


@pytest.mark.parametrize("checks", [True, False])
def test_rows_of_another_run_that_a_checkpoint_names_are_not_removed(
    trained: Path, tmp_path: Path, resumed: Resume, checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check they would be: no checkpoint of the run that is resumed needs them."""
    if not checks:
        monkeypatch.setattr(resume, "own_folders", lambda run, config, named: set(named))
    victim = shutil.copytree(trained.parent / "rows", tmp_path / "victim")
    (victim / "pool-0" / "000000000.rows").rename(victim / "pool-0" / "000000009.rows")
    run, before = tmp_path / "run", files_in(victim)
    assert main(["train", "--no-serve", "--out", str(run), *SETTINGS]) == 0
    manifest = min((run / "checkpoints").iterdir()) / "MANIFEST.json"
    values = json.loads(manifest.read_text())
    del values["crc32"]
    values["disk"][0]["folder"] = str(victim)
    manifest.write_bytes(sealed(Manifest.model_validate_json(json.dumps(values)), manifest))
    assert resumed(run) == ""
    assert (files_in(victim) == before) == checks


def test_a_service_is_opened_to_others_only_by_this_user(tmp_path: Path) -> None:
    opening = {"host": "0.0.0.0", "allow_hosts": ("box",), "token_file": tmp_path / "token"}
    keep_options(tmp_path, {"port": 8500, **opening})
    assert agreed_options(tmp_path, {}) == {"port": 8500, **opening}
    copy = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy"))
    words = {
        "host": "--host=0.0.0.0",
        "allow_hosts": "--allow-host=box",
        "token_file": f"--token-file={tmp_path / 'token'}",
    }
    for name, word in words.items():
        with pytest.raises(UsageError, match=f"serve.json must not open the service .*, got {name}=.* add {word}$"):
            agreed_options(copy, {other: value for other, value in opening.items() if other != name})
    given = agreed_options(copy, opening)
    keep_options(copy, given)
    assert agreed_options(copy, {}) == given == {"port": 8500, **opening}
    (copy / "serve.json").write_text('{"host": "127.0.0.2", "port": 1}')
    assert agreed_options(copy, {}) == {"host": "127.0.0.2", "port": 1}


def test_without_a_key_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that others can read is none."""
    sign(tmp_path, rows=[Path("/rows")])
    assert signed_settings(tmp_path).rows == {Path("/rows")}
    (tmp_path / "adaptive-rec").mkdir()
    key = tmp_path / "adaptive-rec" / "key"
    key.write_bytes(b"k" * 32)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    key.chmod(0o644)
    (tmp_path / "run").mkdir()
    sign(tmp_path / "run", rows=[Path("/rows")])
    assert not (tmp_path / "run" / external_paths.NAME).exists()
    key.chmod(0o600)
    assert not signed_settings(tmp_path).rows  # that of another key
