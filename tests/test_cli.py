"""The command line as users meet it: in a process of its own where that matters, in this one where it does not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adaptive_rec.cli import main

COMMAND = [sys.executable, "-m", "adaptive_rec"]
ENDLESS = ["train", "tiny", "--steps=0", "--set=data.synthetic.samples=1000000000"]
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


def wait_for(condition) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of the tiny preset, made with --json."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    return out, command("train", "tiny", "--json", "--out", out)


def test_help_is_fast():
    """Nothing heavy is imported for it: 60 to 100 ms where the machine is free."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        result = command("--help")
        seconds.append(time.perf_counter() - start)
    assert result.returncode == 0
    assert "examples:" in result.stdout
    assert statistics.median(seconds) < 1.0


@pytest.mark.parametrize("words", [[], ["train", "--help"]])
def test_help_imports_nothing_heavy(words):
    heavy = {"torch", "numba", "numpy", "pydantic", "rich"}
    parsing = f"try: adaptive_rec.cli.parse({words})\nexcept BaseException: pass"
    code = f"import sys, adaptive_rec.cli\n{parsing}\nprint({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert result.stdout.splitlines()[-1] == "set()"


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


def test_what_cannot_be_done_is_said_in_one_line(capsys, tmp_path):
    assert "--resume needs --out" in refused(capsys, "train", "tiny", "--resume")
    absent = f"--data={tmp_path / 'absent.txt'}"
    assert "data.source" in refused(capsys, "train", absent, "--json", f"--out={tmp_path / 'run'}")
    assert "has none" in refused(capsys, "eval", str(tmp_path))
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, "train", "tiny", "--detach", f"--out={tmp_path / 'file' / 'run'}")


def test_memory_errors_say_what_to_change(capsys, monkeypatch):
    def fail(_):
        raise MemoryError("Unable to allocate 97.4 GiB")

    monkeypatch.setattr("adaptive_rec.cli.resolve", fail)
    assert "data.max_table_rows" in refused(capsys, "train", "tiny", code=4)


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    def fail(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("adaptive_rec.cli.resolve", fail)
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
    assert 'name = "hotline"' in printed
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
    assert {path.name for path in out.iterdir()} == {"config.toml", "metrics.jsonl", "summary.json", "checkpoints"}


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
    assert "exit code 2" in capsys.readouterr().err
    assert (out / "summary.json").read_text() == before
    assert not (out / "log.txt").exists()
    assert list(out.parent.iterdir()) == [out]  # no log left beside it


def test_plain_output_has_header_progress_and_summary(tmp_path, capsys):
    assert main(["train", "tiny", "--policy=hotline", "--out", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "\r" not in text
    assert "\x1b" not in text
    assert "hotline on" in text
    assert "step 60 of 60 (100%)" in text
    assert "skipped" not in text  # an exact policy skips nothing
    assert re.search(r"quality +AUC 0\.[67]", text)
    assert text.rstrip().endswith(str(tmp_path / "run"))


def test_resume_goes_on_under_the_run_s_own_configuration(tmp_path, capsys):
    out = tmp_path / "run"
    train = ["train", "--json", "--resume", "--out", str(out)]
    assert main([*train, "tiny", "--seed=5", "--steps=20"]) == 0  # nothing to resume: starts afresh
    assert json.loads(capsys.readouterr().out)["resumed_at_step"] == 0
    assert main([*train, "--steps=30"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["resumed_at_step"], summary["steps"], summary["seed"]) == (20, 30, 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_good_order(tmp_path, number):
    out = tmp_path / "run"
    with subprocess.Popen([*COMMAND, *ENDLESS, "--out", str(out)], stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
        process.send_signal(number)
        text, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 128 + number
    summary = json.loads((out / "summary.json").read_text())
    assert (out / "checkpoints" / f"step-{summary['steps']:09d}" / "checkpoint.json").exists()
    assert "stopped" in text


def test_a_second_signal_ends_it_at_once(tmp_path):
    out = tmp_path / "run"
    words = [*ENDLESS, "--set=data.synthetic.test_samples=500000000", "--out", str(out)]  # hours of evaluation
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: any((out / "checkpoints").glob("step-*")))
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
    assert not (out / "summary.json").exists()


def test_detach_returns_while_the_run_goes_on(tmp_path):
    out = tmp_path / "deep" / "run"
    result = command(*ENDLESS, "--detach", "--json", "--out", out)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    with contextlib.suppress(ProcessLookupError):
        assert told["run"] == str(out)
        assert os.getsid(told["pid"]) == told["pid"]
        assert not (out / "summary.json").exists()
        os.kill(told["pid"], signal.SIGTERM)
    wait_for((out / "summary.json").exists)
    wait_for(lambda: "directory" in (out / "log.txt").read_text())
    assert list(out.parent.iterdir()) == [out]


def test_detach_shows_why_a_run_ended(tmp_path):
    bad = tmp_path / "bad.tsv"
    bad.write_text("not a Criteo row\n")
    result = command("train", "--detach", "--data", bad, "--out", tmp_path / "run")
    assert result.returncode == 3
    assert "error: " in result.stderr
    assert "ended with exit code 3" in result.stderr
    assert list(tmp_path.iterdir()) == [bad]


def test_a_closed_pipe_is_quiet():
    text = f"{' '.join(COMMAND)} train base --print-config | true"
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert result.stderr == ""
