"""``train --processes``: real processes, started by torchrun, that are killed, stopped and steered."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.cli import main
from adaptive_rec.cli.launcher import RUN_ID, Launcher, Wanted
from tests import forked
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "adaptive_rec"]
TRAIN = ["train", "tiny", "--processes", "2", "--set=run.precision=float64", "--set=eval.max_samples=500"]
LONG = ["--steps=0", "--set=data.synthetic.samples=100000000", "--set=checkpoint.every_steps=20"]

SAVED = ["--steps=120", "--set=checkpoint.every_steps=20", "--no-serve"]


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    command = [*COMMAND, *TRAIN, f"--out={out}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize(
    ("noted", "status", "code", "said"),
    [
        (["rank 1 was ended by SIGTERM"], 5, 5, ""),
        (["rank 0 ended with exit code 5", "rank 1 was ended by SIGTERM"], 5, 5, ""),
        (["rank 1 was ended by SIGTERM"], -15, 1, "error: rank 1 was ended by SIGTERM, and all others with it"),
        (["rank 0 ended with exit code 1", "rank 1 was ended by SIGKILL"], 1, 1, "error: rank 1 was ended by SIGKILL"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(
    noted: list[str], status: int, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where torchrun has taken its status before it was noted here: the others are ended by torchrun's SIGTERM."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    launcher = Launcher([], Wanted(2, 0))

    def fail(*_: str) -> None:
        launcher._ends += noted
        raise ChildFailedError("python", {0: ProcessFailure(local_rank=0, pid=1, exitcode=status, error_file="")})

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: fail)
    launcher._train()
    told = capsys.readouterr().err
    assert (launcher._code, told.startswith(said), bool(told)) == (code, True, bool(said))


def ranks_of(out: Path) -> dict[int, int]:
    """The process of each rank of a run."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = ((folder / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        ranks = [word[5:] for word in variables if word.startswith(b"RANK=")]
        if ranks and {f"--out={out}".encode(), str(out).encode()} & set(words):
            found[int(ranks[0])] = int(folder.name)
    return found


def summary_of(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def tables_that_differ(one: Path, other: Path) -> list[str]:
    words = ["checkpoint", "diff", str(one), str(other)]
    text = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False).stdout
    return [line for line in text.splitlines() if line.startswith(("C", "dense"))]


def watch_of(process: subprocess.Popen[str], out: Path) -> Stopwatch:
    """Return a clock that stands still while a run's processes wait for a processor."""
    return Stopwatch(process.pid, *ranks_of(out).values())


@pytest.mark.slow
def test_two_processes_train_one_run_that_is_steered_from_a_shell(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], told: Callable[..., str], tmp_path: Path
) -> None:
    """The launcher begins with its libraries loaded, and commands to the run are carried out here: both ranks are fresh."""
    out, printed = tmp_path / "run", (tmp_path / "output.txt", tmp_path / "errors.txt")
    with printed[0].open("wb") as output, printed[1].open("wb") as errors:
        words = [*TRAIN, f"--out={out}", *LONG, "--set=checkpoint.every_steps=10000", "--port=0"]
        process = forked.start(words, output.fileno(), dict(os.environ), errors=errors.fileno())
    try:
        wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2 or process.poll() is not None)
        for verb in (["knobs", "set", "hot_budget_bytes=6KiB"], ["pause"], ["resume"]):
            told(*verb, "--run", str(out))
        shown = told("status", "--json", "--run", str(out))
        told("stop", "--run", str(out))
        process.wait(120)
    finally:
        process.kill()
    text, complaints = (path.read_text() for path in printed)

    assert process.returncode == 0, complaints
    assert "quality" in text
    summary = summary_of(out)
    assert summary["processes"] == 2
    assert summary["sent_bytes"]["rows"] > 0
    ranks = json.loads(shown)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in [*ranks, *summary["ranks"]]:
        assert min(rank["work_seconds_per_step"], rank["wait_seconds_per_step"]) > 0
        assert min(rank["sent_bytes"][kind] for kind in ("requests", "rows", "gradients", "dense")) > 0
    assert "% waiting for other ranks" in text
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert [kind for kind in kinds if kind in ("knobs", "paused", "resumed", "stopping")] == [
        "knobs", "paused", "resumed", "stopping",
    ]  # fmt: skip
    assert "rows-100000" in told("checkpoint", "verify", str(out))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing has broken."""
    out = tmp_path_factory.mktemp("whole") / "run"
    process = start(out, *SAVED)
    _, complaints = process.communicate(timeout=600)
    assert process.returncode == 0, complaints
    return out


REORDERED = ["--policy=slipstream_released", "--set=data.ids=raw", "--set=policy.sampling_ratio=0.5"]
ON_DISK = ["--set=run.host_memory=1MiB", "--set=knobs.hot_budget_bytes=6KiB"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "words"),
    [(0, []), (1, []), (1, ON_DISK), (1, ["--policy=cdlrm"]), (0, ["--policy=oracle"]), (0, ["--policy=xdl"]), (1, REORDERED)],
)
def test_a_killed_rank_is_started_again_and_the_run_ends_as_if_unbroken(
    wait_for: Callable[..., None], tmp_path: Path, whole: Path, rank: int, words: list[str]
) -> None:
    """Also where the ranks of the broken run have their cold rows on a disk, or place rows otherwise, which changes no bit."""
    out = tmp_path / "run"
    if words is REORDERED:
        whole = tmp_path / "whole"
        start(whole, *SAVED, *words).communicate(timeout=120)
    broken = start(out, *SAVED, "--restarts=2", *words)
    wait_for(lambda: (out / "checkpoints" / "step-000000040").exists())
    os.kill(ranks_of(out)[rank], signal.SIGKILL)
    _, complaints = broken.communicate(timeout=600)

    assert broken.returncode == 0, complaints
    assert f"rank {rank} was ended by SIGKILL; 2 ranks start again from the newest checkpoint (restart 1 of 2)" in complaints
    assert summary_of(out)["resumed_at_step"] > 0
    assert summary_of(out)["samples_seen"] == summary_of(whole)["samples_seen"]
    assert tables_that_differ(whole, out) == []


@pytest.mark.slow
def test_without_restarts_a_killed_rank_ends_the_run_by_name(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, *LONG, "--no-serve")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    watch = watch_of(process, out)
    os.kill(ranks_of(out)[1], signal.SIGKILL)
    assert watch.wait(process, 30) == 1
    _, complaints = process.communicate(timeout=300)

    assert "rank 1 was ended by SIGKILL, and all others with it" in complaints
    assert "Traceback" not in complaints


@pytest.mark.slow
def test_a_stopped_rank_ends_the_run_by_name_within_half_a_minute(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, *LONG, "--no-serve")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    watch = watch_of(process, out)
    os.kill(ranks_of(out)[0], signal.SIGSTOP)
    assert watch.wait(process, 30) == 1
    _, complaints = process.communicate(timeout=300)

    assert "rank 0 has stood still for 15 seconds" in complaints


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path, number: int
) -> None:
    out = tmp_path / "run"
    process = start(out, *LONG, "--no-serve")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=300)

    assert process.returncode == 128 + number
    steps = summary_of(out)["steps"]
    assert (out / "checkpoints" / f"step-{steps:09d}" / "MANIFEST.json").exists()
    assert "Traceback" not in complaints
    assert ranks_of(out) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_a_rank_that_is_stopped_in_start_up_ends_the_run(
    wait_for: Callable[..., None], tmp_path: Path, seconds: float
) -> None:
    process = start(tmp_path / "run", *LONG, "--no-serve")
    wait_for(lambda: len(ranks_of(tmp_path / "run")) == 2)
    time.sleep(seconds)
    watch = watch_of(process, tmp_path / "run")
    os.kill(ranks_of(tmp_path / "run")[1], signal.SIGSTOP)
    assert watch.wait(process, 30) == 1
    _, complaints = process.communicate(timeout=300)

    assert "rank 1 has stood still for 15 seconds" in complaints


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, *LONG, "--no-serve")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    os.kill(ranks_of(out)[1], signal.SIGSTOP)  # so that no rank can obey the first one
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert Stopwatch(process.pid).wait(process, 12) == 130
    wait_for(lambda: ranks_of(out) == {})


@pytest.mark.slow
def test_ranks_do_not_outlive_the_process_that_started_them(
    wait_for: Callable[..., None], lines_of: Callable[[Path], int], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(out, *LONG, "--no-serve")
    wait_for(lambda: lines_of(out / "metrics.jsonl") >= 2)
    process.kill()
    wait_for(lambda: ranks_of(out) == {})
    steps = summary_of(out)["steps"]
    assert (out / "checkpoints" / f"step-{steps:09d}" / "MANIFEST.json").exists()


def test_wrong_numbers_of_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, rule in (
        (["--processes=0"], "--processes must be a whole number from 1 to 1024, got 0"),
        (["--processes=two"], "--processes must be a whole number from 1 to 1024, got two"),
        (["--processes=2", "--restarts=-1"], "--restarts must be a whole number from 0 to 1000, got -1"),
        (["--processes=2", "--restarts=1", "--replay=run"], "give one of them"),
        (["--processes=2", "--set=run.classify=device"], "run.classify must be host where several processes"),
    ):
        code, complaints = main(["train", "tiny", *words, f"--out={tmp_path / 'r'}"]), capsys.readouterr().err
        assert code == 2, complaints
        assert rule in complaints, words
        assert complaints.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number from 1 on where a launcher sets it, got 'two'"),
        ({"WORLD_SIZE": "2"}, "RANK must be a whole number below WORLD_SIZE, which is 2, got none"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK must be a whole number below WORLD_SIZE, which is 2, got 2"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK must be a whole number below WORLD_SIZE, which is 2, got -1"),
    ],
)
def test_a_launch_that_names_no_rank_trains_nothing(
    variables: dict[str, str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "tiny", f"--out={tmp_path / 'run'}"]) == 2
    assert rule in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("broken", "one_screen"), [(0, False), (1, True)])
def test_an_error_of_one_rank_is_the_last_line_and_gives_all_their_code(broken: int, one_screen: bool, tmp_path: Path) -> None:
    """Each rank names the cause; where all print to the screen of one launcher, only the rank that has it does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    group |= {"TORCHELASTIC_RUN_ID": f"{RUN_ID}1"} if one_screen else {}
    line = "\t".join(["1", *["2"] * 13, *["a"] * 26]) + "\n"
    processes = []
    with (screen := tmp_path / "screen.txt").open("wb") as output:
        for rank in range(2):
            (data := tmp_path / f"{rank}.tsv").write_text(line * 40 + "9" * (rank == broken) + line)
            words = ["train", "criteo_kaggle", f"--set=data.source={data}", "--no-serve", f"--out={tmp_path / 'run'}"]
            processes.append(forked.start(words, output.fileno(), {**os.environ, **group, "RANK": str(rank)}))
        codes = [process.wait(120) for process in processes]

    errors = [line for line in screen.read_text().splitlines() if line.startswith("error: ")]
    assert codes == [3, 3], errors
    cause = f"{tmp_path / f'{broken}.tsv'}, line 41, column label: must be 0 or 1, got '91'"
    assert errors[0] == f"error: {'rank 1: ' * broken}{cause}"
    lost = f"all 2 ranks must stay connected, an error has ended rank {broken} (seen by rank {1 - broken}): {cause}"
    assert errors[1:] == ([] if one_screen else [f"error: {'rank 1: ' * (1 - broken)}{lost}"])


@pytest.mark.slow
def test_a_run_that_a_rule_suspends_ends_with_its_code_and_starts_no_rank_again(tmp_path: Path) -> None:
    out, rule = tmp_path / "run", "--set=watch.rules=['loss < 90 for 3 reports: pause']"
    process = start(out, *SAVED, rule, "--set=knobs.report_every=5", "--restarts", "1")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 7, said
    kinds = [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert (kinds.count("started"), kinds[-1]) == (1, "suspended")
    assert main(["train", "--resume", "--no-serve", f"--out={out}"]) == 0, "one process goes on"
    assert summary_of(out)["steps"] == 120
