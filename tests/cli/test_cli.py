"""The command line as users meet it: in a process of its own where that matters, in this one where it does not."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adaptive_rec.cli import main
from tests import forked
from tests.settings import COMMAND

REOPEN = ["adaptive-rec", "serve"]
WAIT_SECONDS = 120


def command(*words: object, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=WAIT_SECONDS, **settings
    )


def refused(capsys, *words: str, code: int = 2) -> str:
    """The one message of a command line that cannot be carried out."""
    assert main(list(words)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err.rstrip().splitlines()[-1]


@pytest.fixture(scope="module", autouse=True)
def own_runtime_folder(tmp_path_factory):
    """Runs of these tests are told from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("x")))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of the tiny preset, made with --json."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    words, texts = ["train", "tiny", "--json", "--no-serve", "--out", str(out)], tmp_path_factory.mktemp("texts")
    with open(texts / "output", "w") as output, open(texts / "errors", "w") as errors, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", output)
        patch.setattr("sys.stderr", errors)
        code = main(words)
    return out, subprocess.CompletedProcess(words, code, *((texts / name).read_text() for name in ("output", "errors")))


def test_help_is_fast():
    """Nothing heavy is imported for it: it takes the processor 60 to 100 ms, and torch takes a second."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = command("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0
    assert "examples:" in result.stdout
    assert 0 < after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


PARSED = [[], ["train", "--help"], ["status"], ["knobs", "set", "alpha=1"], ["serve", "x"]]


def test_help_imports_nothing_heavy():
    """One process parses all of them and tells after each what is loaded by then."""
    heavy = {"torch", "numba", "numpy", "pydantic", "rich", "fastapi", "uvicorn", "httpx2", "subprocess"}
    parsing = "    try: adaptive_rec.cli.parse(words)\n    except BaseException: pass\n"
    telling = f"    print(f'after {{words}}:', {heavy} & set(sys.modules))\n"
    code = f"import sys, adaptive_rec.cli\nfor words in {PARSED}:\n{parsing}{telling}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS)
    told = [line for line in result.stdout.splitlines() if line.startswith("after ")]
    assert told == [f"after {words}: set()" for words in PARSED], result.stderr


def test_typos_name_the_nearest_name(capsys, tmp_path):
    out = f"--out={tmp_path / 'run'}"
    assert refused(capsys, "trian").startswith("error: unknown command trian; did you mean train?")
    assert "unknown argument --polcy; did you mean --policy?" in refused(capsys, "train", "--polcy", "hotline")
    assert "unknown argument --stpes; did you mean --steps?" in refused(capsys, "train", "--stpes=5")
    assert "did you mean slipstream?" in refused(capsys, "train", "--policy", "slipsteam", out)
    assert "did you mean tiny?" in refused(capsys, "train", "tinny", out)
    assert "did you mean run.steps?" in refused(capsys, "train", "tiny", "--set", "run.step=4", out)
    assert "unknown argument extra" in refused(capsys, "train", "tiny", "extra", out)
    assert "cpu" in refused(capsys, "train", "tiny", "--device", "gpu", out)
    assert "run.steps" in refused(capsys, "train", "tiny", "--steps", "many", out)
    assert "give a command" in refused(capsys)
    assert not (tmp_path / "run").exists()


def test_errors_are_one_line(capsys, tmp_path):
    assert "--resume needs --out" in refused(capsys, "train", "tiny", "--resume")
    absent = f"--data={tmp_path / 'absent.txt'}"
    assert "data.source" in refused(capsys, "train", absent, "--json", f"--out={tmp_path / 'run'}")
    assert "has no config.toml" in refused(capsys, "eval", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, "train", "tiny", "--detach", f"--out={tmp_path / 'file' / 'run'}")


def test_memory_errors_say_what_to_change(capsys, monkeypatch):
    def fail(_):
        raise MemoryError("Unable to allocate 97.4 GiB")

    monkeypatch.setattr("adaptive_rec.cli.train_settings.resolve_run", fail)
    assert "data.max_table_rows" in refused(capsys, "train", "tiny", code=4)


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    def fail(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("adaptive_rec.cli.train_settings.resolve_run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train", "tiny"])


def test_print_config_reruns_the_same_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTIVE_REC_KNOBS__ALPHA", "0.7")
    words = [
        "--policy=hotline",
        "--steps=7",
        "--seed=3",
        "--set=knobs.alpha=0.6",
        "--set=run.steps=9",
        "--print-config",
    ]
    assert main(["train", "tiny", *words]) == 0
    printed = capsys.readouterr().out
    assert 'policy = "hotline"' in printed
    assert "steps = 7\n" in printed  # flags win over --set
    assert "alpha = 0.6\n" in printed  # which wins over the environment
    (tmp_path / "my.toml").write_text(printed)
    monkeypatch.delenv("ADAPTIVE_REC_KNOBS__ALPHA")
    assert main(["train", str(tmp_path / "my.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_the_preset_follows_the_data(capsys, tmp_path):
    sample = tmp_path / 'odd "name".tsv'
    sample.write_text("1\n")
    full = tmp_path / "train.txt"
    with open(full, "wb") as file:
        file.truncate((256 << 20) + 1)
    for data, batch_size in ((None, 512), ("synthetic", 512), (sample, 256), (full, 2048)):
        assert main(["train", "--print-config", *([f"--data={data}"] if data else [])]) == 0
        assert f"batch_size = {batch_size}\n" in capsys.readouterr().out


def test_json_is_the_summary_and_nothing_else(finished):
    out, result = finished
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((out / "summary.json").read_text())
    assert "samples/s" in result.stderr
    assert "\r" not in result.stderr
    files = {"config.toml", "run.json", "metrics.jsonl", "events.jsonl", "summary.json", "report.html", "checkpoints"}
    assert {path.name for path in out.iterdir()} == {*files, ".lock"}


@pytest.mark.slow
def test_json_is_all_that_a_process_prints(tmp_path):
    result = command("train", "tiny", "--json", "--no-serve", "--steps=5", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_eval_gives_the_figures_of_the_summary(finished, capsys):
    out, _ = finished
    assert main(["eval", str(out), "--json"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    scored = json.loads(capsys.readouterr().out)
    assert scored["step"] == summary["steps"]
    assert scored["auc"] == summary["eval"]["auc"]
    assert scored["logloss"] == pytest.approx(summary["eval"]["logloss"], rel=1e-6)


def test_an_existing_directory_is_refused_and_left_alone(finished, capsys):
    out, _ = finished
    before = (out / "summary.json").read_text()
    assert "--resume" in refused(capsys, "train", "tiny", "--json", "--out", str(out))[-200:]
    assert main(["train", "tiny", "--detach", "--out", str(out)]) == 2
    assert "--out must be a new directory" in capsys.readouterr().err
    assert (out / "summary.json").read_text() == before
    assert not (out / "log.txt").exists()
    assert list(out.parent.iterdir()) == [out]  # no log left beside it


def test_plain_output_has_header_progress_and_summary(tmp_path, capsys):
    assert main(["train", "tiny", "--policy=hotline", "--no-serve", "--out", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "\r" not in text
    assert "\x1b" not in text
    assert "hotline on" in text
    assert "step 60 of 60 (100%)" in text
    assert "skipped" not in text  # an exact policy skips nothing
    assert re.search(r"quality +AUC 0\.[67]", text)
    assert "dashboard" not in text
    words = ["directory", str(tmp_path / "run"), "report", str(tmp_path / "run" / "report.html"), "reopen", *REOPEN]
    assert "".join(text.split()).endswith("".join([*words, str(tmp_path / "run")]))  # long paths are folded


def test_resume_uses_the_configuration_of_the_run(tmp_path, capsys):
    out = tmp_path / "run"
    train = ["train", "--json", "--no-serve", "--resume", "--out", str(out)]
    assert main([*train, "tiny", "--seed=5", "--steps=20"]) == 0  # nothing to resume: starts afresh
    assert json.loads(capsys.readouterr().out)["resumed_at_step"] == 0
    assert main([*train, "--steps=30"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["resumed_at_step"], summary["steps"], summary["seed"]) == (20, 30, 5)
    kept = (out / "config.toml").read_text()
    assert "run.steps must be at least the 30 steps that" in refused(capsys, *train, "--steps=25")
    assert (out / "config.toml").read_text() == kept


def test_resume_without_a_run_is_refused(tmp_path, capsys):
    for words in (["--resume"], ["--resume", "--set=run.seed=3", "--detach"]):
        told = refused(capsys, "train", *words, "--no-serve", "--out", str(tmp_path / "rum"))
        told_of = f"--resume must continue a run, {tmp_path}/rum does not exist; to begin one there, name its CONFIG"
        assert told_of in told
    assert "has no config.toml" in refused(capsys, "train", "--resume", "--no-serve", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_resume_without_a_checkpoint_is_reported(tmp_path, capsys):
    train = ["train", "tiny", "--no-serve", "--steps=5", "--resume", "--out", str(tmp_path / "run")]
    assert main(train) == 0
    told = "run does not exist: the run starts from the beginning\n"
    assert told in capsys.readouterr().err
    assert main(train) == 0
    assert told not in capsys.readouterr().err


def test_a_run_continues_when_its_reader_goes_away(tmp_path, monkeypatch):
    reading, writing = os.pipe()

    def read_a_line():
        with open(reading, encoding="utf-8") as shown:
            first.append(shown.readline())

    first, reader = [], threading.Thread(target=read_a_line)
    reader.start()
    with open(writing, "w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert main(["train", "tiny", "--no-serve", "--steps=30", "--out", str(tmp_path / "run")]) == 0
        assert os.fstat(output.fileno()).st_rdev == os.stat(os.devnull).st_rdev, "nobody has read what came after"
    reader.join()
    assert first[0].strip()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 30


@pytest.mark.slow
@pytest.mark.parametrize("output", [[], ["--json"]])
def test_a_run_continues_when_its_output_is_closed(tmp_path, output):
    """As above, as a process."""
    train = ["train", "tiny", "--no-serve", "--steps=30", "--out", str(tmp_path / "run"), *output]
    reading, writing = os.pipe()
    process = forked.start(train, writing, dict(os.environ))
    os.close(writing)
    with open(reading, encoding="utf-8") as shown:
        assert shown.readline()
    process.wait(WAIT_SECONDS)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 30


def test_a_name_that_cannot_be_shown_is_printed_all_the_same(finished, tmp_path):
    out, _ = finished
    shutil.copytree(out, tmp_path / "rün")
    ascii = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([*COMMAND, "report", str(tmp_path / "rün")], capture_output=True, text=True, env=ascii)
    assert result.returncode == 0
    assert result.stderr.endswith("r\\xfcn ...\n")
    assert result.stdout.endswith("r\\xfcn/report.html\n")


def test_the_number_of_steps_is_printed_where_the_data_limits_it(tmp_path, capsys):
    train = ["train", "--no-serve", "--resume", "--out", str(tmp_path / "run")]
    few = ["--set=data.synthetic.samples=300", "--set=run.batch_size=100"]
    assert main([*train, "tiny", *few, "--steps=50"]) == 0
    assert "3 steps, all that the data has; run.steps is 50\n" in capsys.readouterr().out
    assert main(train) == 0
    assert (
        "resumed at step 3: nothing left to train, read the data more often (data.epochs)\n"
        in capsys.readouterr().out
    )
    assert main([*train, "--set=data.epochs=2", "--steps=5"]) == 0
    assert "resumed at step 3, 2 to go\n" in capsys.readouterr().out
    assert main(train) == 0
    assert "resumed at step 5: nothing left to train, give more steps\n" in capsys.readouterr().out


def test_a_run_that_could_not_be_scored_does_not_begin(tmp_path, capsys):
    out, one_row = tmp_path / "run", tmp_path / "one.tsv"
    one_row.write_text("\t".join(["1", *["2"] * 13, *["68fd1e64"] * 26]) + "\n")
    assert main(["train", "--data", str(one_row), "--no-serve", "--out", str(out)]) == 3
    assert "data.test_range must hold at least one sample" in capsys.readouterr().err
    assert not out.exists()


def test_a_closed_pipe_is_quiet():
    text = f"{' '.join(COMMAND)} train base --print-config | true"
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert result.stderr == ""


def test_replay_repeats_a_run_with_its_knob_changes(tmp_path, capsys):
    steered, again = tmp_path / "steered", tmp_path / "again"
    small = ["--no-serve", "--steps=30"]
    assert main(["train", "tiny", "--policy=slipstream", *small, "--out", str(steered)]) == 0
    change = {
        "time": 0.0,
        "step": 10,
        "kind": "knobs",
        "text": "",
        "details": {"changed": {"alpha": {"old": 0.9, "new": 0.25}}},
    }
    with open(steered / "events.jsonl", "a") as journal:
        journal.write(json.dumps(change) + "\n")
    assert main(["train", "--replay", str(steered), "--no-serve", "--out", str(again)]) == 0
    assert "alpha 0.9 -> 0.25" in capsys.readouterr().out
    assert json.loads((again / "summary.json").read_text())["steps"] == 30, "under the configuration of the other"
    assert "has no config.toml" in refused(capsys, "train", "--replay", str(tmp_path), "--no-serve")
    assert "give one of them" in refused(capsys, "train", "--replay", str(steered), "--resume", "--out", str(again))


def test_what_is_printed_to_be_typed_can_be_typed(tmp_path, monkeypatch):
    from adaptive_rec.cli.console import program

    script = tmp_path / "adaptive-rec"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == str(script), "as from make train: not on the path"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "adaptive-rec"
    monkeypatch.setattr("sys.argv", ["/some/where/__main__.py"])
    assert program() == "adaptive-rec"


def test_a_line_break_in_a_path_is_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("adaptive_rec.offline.report.run_report.write_report", lambda run, out: Path("a\nb/report.html"))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "a\\nb/report.html\n"
