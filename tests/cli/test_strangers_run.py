"""A run directory that somebody else made: commands that look at it execute nothing of it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.sidecar_process import own_modules_only

PLANTED = (
    "brotli", "cffi", "coverage", "dill", "email_validator", "gmpy2", "multipart", "opt_einsum", "org", "orjson", "pandas",
    "python_multipart", "snappy", "tabulate", "tensorflow", "ujson", "watchfiles",
    "__future__", "argparse", "importlib", "json", "typing", "sitecustomize",
)  # fmt: skip
"""Modules that our libraries import where they are installed, and modules of the standard library."""

PLUGINS = """
from adaptive_rec.policy import Policy, Wish

class Rows(Policy):
    name = "rows"
    tracks_popularity = True

    def place(self, view):
        return Wish(view.candidate_rows, view.candidate_scores)

class Notes:
    def __init__(self, folder, step): ...
    def log(self, step, values): ...
    def event(self, step, kind, text): ...
    def close(self): ...
"""

LOOKING = (
    "status", "runs", "knobs get alpha", "report {run} --out {out}/r.html", "eval {run}", "eval {run} --data {run}/clicks.csv",
    "predict {run} --data {run}/clicks.csv --out {out}/p.csv", "nearest {run} item", "export {run} --to {out}/model",
    "checkpoint list {run}", "checkpoint verify {run}", "checkpoint diff {run} {run}",
    "checkpoint export {run} --out {out}/tables",
)  # fmt: skip
QUICK = tuple(command for command in LOOKING if not command.startswith(("eval", "predict", "export")))
"""Those that load torch in part at most; the others load what takes seconds, and would import the same planted modules."""
WITHOUT_A_RUN = ("status", "knobs")
"""They end with an error, as no run is under way."""


def words_of(command: str, run: Path | str, out: Path) -> list[str]:
    words = [word.format(run=run, out=out) for word in command.split()]
    return [*words, "item 7"] if words[0] == "nearest" else words


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose configuration, checkpoints and journal name a policy and a tracker that lie in its directory, among other
    modules. Each writes its name to `executed` when it is imported."""
    folder = tmp_path_factory.mktemp("stranger")
    dice = random.Random(3)
    lines = [f"{dice.randint(0, 1)},user {dice.randint(0, 90)},item {dice.randint(0, 90)}" for _ in range(1200)]
    data, run = folder / "clicks.csv", folder / "run"
    data.write_text("\n".join(["clicked,user,item", *lines]) + "\n")
    note = f"open({str(folder / 'executed')!r}, 'a').write(__name__ + '\\n')\n"
    (folder / "planted_plugins.py").write_text(note + PLUGINS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        settings = [
            "model.bottom_mlp=[8]", "model.top_mlp=[8]", "run.batch_size=64", "run.device=cpu", "run.threads=1",
            "checkpoint.every_steps=5",
        ]  # fmt: skip
        words = ["train", "--data", str(data), "--label", "clicked", "--out", str(run), "--no-serve"]
        own = ["--policy", "planted_plugins:Rows", "--track", "planted_plugins:Notes"]
        assert main([*words, *own, *(f"--set={each}" for each in settings)]) == 0
        del sys.modules["planted_plugins"]
    assert (folder / "executed").read_text() == "planted_plugins\n"
    (folder / "executed").unlink()
    assert (run / "config.toml").read_text().count("planted_plugins:") == 2
    shutil.copy(data, run)
    for name in PLANTED:
        (run / f"{name}.py").write_text(note)
    shutil.move(folder / "planted_plugins.py", run)
    info = run / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[adaptive_rec.policies]\nplanted = planted_plugins:Rows\n")
    (run / ".numba_config.yaml").write_text("opt: 1\ncuda_driver: /planted/libcuda.so\n")
    yield run
    sys.modules.pop("planted_plugins", None)


@pytest.fixture
def executed(stranger: Path) -> Iterator[Callable[[], list[str]]]:
    """The names of the planted modules that were imported."""
    note = stranger.parent / "executed"

    def names() -> list[str]:
        return note.read_text().split() if note.exists() else []

    yield names
    note.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """As of a user who stands in a folder with our script on PATH."""
    left_out = ("PYTHONSAFEPATH", "ADAPTIVE_REC_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2])}


SCRIPT = """
import sys
from adaptive_rec.cli import main
codes = [main(words) for words in {commands!r}]
import numba
print("ENDED", codes, int(numba.config.OPT), repr(numba.config.CUDA_DRIVER))
"""


@pytest.mark.parametrize("looking", [QUICK, pytest.param(LOOKING, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_looking_from_inside_executes_nothing(
    stranger: Path, executed: Callable[[], list[str]], tmp_path: Path, looking: tuple[str, ...]
) -> None:
    """The script of the package, whose first place of modules is its own folder."""
    commands = [words_of(command, ".", tmp_path) for command in looking]
    script = tmp_path / "bin" / "adaptive-rec"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(commands=commands))
    done = subprocess.run(
        [sys.executable, script], cwd=stranger, env=environment(), capture_output=True, text=True, timeout=600
    )
    codes = [2 if words[0] in WITHOUT_A_RUN else 0 for words in commands]
    assert f"ENDED {codes} 3 ''\n" in done.stdout, done.stderr[-2000:]
    assert "warning: .numba_config.yaml of the working directory is not read" in done.stderr
    assert executed() == []


def test_a_package_of_our_name_in_the_working_directory_is_not_taken(tmp_path: Path) -> None:
    """Neither by our script nor by the processes that we start, though they are started by `python -m`."""
    planted, script = tmp_path / "adaptive_rec" / "__init__.py", tmp_path / "bin" / "adaptive-rec"
    for path, text in ((planted, "raise SystemExit('planted')"), (script, SCRIPT.format(commands=[["status"]]))):
        path.parent.mkdir()
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep)
        ours = own_modules_only()
    for words, where in (([script], environment()), (["-m", "adaptive_rec", "--version"], ours)):
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=600)
        assert (done.returncode, "planted" in done.stderr) == (0, False), done.stderr[-2000:]


EDITABLE = """
import sys
place = "__editable__.adaptive_rec-0.1.0.finder.__path_hook__"
sys.path = [*(each for each in sys.path if each != place), place]
import adaptive_rec
from importlib.metadata import entry_points
print([each.value for each in entry_points(group="torch.backends") if each.name == "planted"])
"""


def test_the_place_of_an_editable_install_finds_no_packages_in_the_working_directory(tmp_path: Path) -> None:
    info = tmp_path / "__editable__.adaptive_rec-0.1.0.finder.__path_hook__" / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nplanted = setuptools:setup\n")
    script = tmp_path / "bin" / "adaptive-rec"
    script.parent.mkdir()
    outputs = []
    for text in (EDITABLE, EDITABLE.replace("import adaptive_rec\n", "")):
        script.write_text(text)
        command = [sys.executable, script]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
        outputs.append(done.stdout)
    assert outputs == ["[]\n", "['setuptools:setup']\n"], "the second one shows that they would be found"


def test_looking_from_elsewhere_executes_nothing(
    stranger: Path, executed: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in LOOKING:
        words = words_of(command, stranger, tmp_path)
        assert main(words) == (2 if words[0] in WITHOUT_A_RUN else 0), words
    assert executed() == []


@pytest.mark.slow
def test_serving_from_inside_executes_nothing(stranger: Path, executed: Callable[[], list[str]]) -> None:
    """`python -m`, whose first place of modules is the working directory, and the sidecar that it starts."""
    command = [sys.executable, "-m", "adaptive_rec", "serve", ".", "--port=0"]
    with subprocess.Popen(command, cwd=stranger, env=environment(), stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        url = re.search(r"http://\S+", served.stdout.readline())
        assert url is not None
        ask = f"import urllib.request as r; print(r.urlopen('{url[0]}/livez', timeout=300).status)"
        answer = subprocess.run([sys.executable, "-Pc", ask], capture_output=True, text=True, check=True)
        served.terminate()
    assert answer.stdout == "200\n"
    assert served.returncode == 0
    assert executed() == []


@pytest.mark.parametrize("option", ["--resume --out", "--replay"])
def test_code_that_a_run_names_is_executed_only_where_it_is_trusted(
    stranger: Path, executed: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], option: str,
) -> None:  # fmt: skip
    pytest.importorskip("sympy", reason="torch needs it")  # loaded later, it would take the folder's gmpy2 for the real one
    run = tmp_path / "run"
    shutil.copytree(stranger, run)
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    again, names = ["train", *option.split(), str(run), "--no-serve", "--dry-run"], ("Rows", "Notes")
    for trusted, missing in (([], "Rows"), (["--track=planted_plugins:Notes"], "Rows"), (["--policy=hybrid"], "Notes")):
        assert main([*again, *trusted]) == 2
        assert f"that the command line names, got 'planted_plugins:{missing}'" in capsys.readouterr().err
    assert executed() == []
    assert main([*again, f"--trust-plugins={','.join(f'planted_plugins:{name}' for name in names)}"]) == 0
    assert executed() == ["planted_plugins"]
    sys.modules.pop("planted_plugins")


@pytest.mark.parametrize("kept", ["checkpoint", "journal"])
def test_a_policy_that_a_run_changed_to_is_not_imported(
    stranger: Path, executed: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], kept: str,
) -> None:  # fmt: skip
    """The configuration names built-in ones alone: what names the class is the checkpoint to resume, or the journal to replay."""
    run, events = tmp_path / "run", tmp_path / "run" / "events.jsonl"
    shutil.copytree(stranger, run)
    monkeypatch.chdir(run)
    plain = (
        (run / "config.toml")
        .read_text()
        .replace("planted_plugins:Rows", "hybrid")
        .replace("planted_plugins:Notes", "tensorboard")
    )
    (run / "config.toml").write_text(plain)
    if kept == "journal":
        changed = {"policy": {"old": "hybrid", "new": "planted_plugins:Rows"}}
        event = {"time": 0, "step": 2, "kind": "knobs", "text": "", "details": {"changed": changed}}
        events.write_text(f"{events.read_text()}{json.dumps(event)}\n")
    other = ["--replay", str(run), "--out", str(tmp_path / "new")]
    assert main(["train", *(other if kept == "journal" else ["--resume", "--out", str(run)]), "--no-serve"]) == 2
    assert "that the command line names, got 'planted_plugins:Rows'; if you trust" in capsys.readouterr().err
    assert executed() == []
    assert not (tmp_path / "new").exists()
