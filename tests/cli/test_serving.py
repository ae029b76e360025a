"""``train`` and ``serve`` with the sidecar: what is told, what is refused, what becomes of failures."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import ModuleType
from typing import ClassVar

import pytest

from adaptive_rec.cli import main
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.runtime_file import under_way

pytestmark = pytest.mark.alone

COMMAND = [sys.executable, "-m", "adaptive_rec"]
ENDLESS = ["train", "tiny", "--steps=0", "--set=data.synthetic.samples=1000000000", "--port=0"]
WAIT_SECONDS = 120


def test_train_keeps_its_flags_few(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    of_columns = {"--label", "--item", "--user", "--schema", "--time", "--weight", "--group"}
    assert len(set(re.findall(r"^  (--[a-z-]+)", text, flags=re.M)) - of_columns) in range(15, 28)
    assert f"(default: {ServeOptions.host})" in text
    assert f"(default: {ServeOptions.port})" in text


def test_what_the_service_cannot_do_is_refused_before_training(refused, tmp_path):
    train = ["train", "tiny", f"--out={tmp_path / 'run'}"]
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        assert "--allow-host" in refused(*train, f"--host={host}")
    assert "--port must be" in refused(*train, "--port=65536")
    assert "--port" in refused(*train, "--port=http")
    assert "--linger" in refused(*train, "--linger", "--no-serve")
    assert "has no config.toml" in refused("serve", str(tmp_path))
    assert "none does not exist" in refused("serve", str(tmp_path / "none"))
    assert "--allow-host" in refused("serve", str(tmp_path), "--host=0.0.0.0")
    assert not (tmp_path / "run").exists()


def broken_sidecar(monkeypatch) -> None:
    module = ModuleType("adaptive_rec.live.sidecar")
    monkeypatch.setitem(sys.modules, "adaptive_rec.live.sidecar", module)  # without what is to be imported from it


def test_training_continues_without_a_sidecar_that_cannot_start(tmp_path, capsys, monkeypatch):
    broken_sidecar(monkeypatch)
    assert main(["train", "tiny", "--json", "--linger", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == 60
    assert re.search("^no dashboard: .*Sidecar.*; training continues without it$", captured.err, flags=re.M)


class FakeSidecar:
    """Takes its notes from the test, lingers until the signal that it sends itself."""

    url, dashboard_url = "http://127.0.0.1:8471", "http://127.0.0.1:8471/#c=SECRET"
    log: ClassVar[list[str]] = []

    options: ClassVar[ServeOptions]

    def __init__(self, options, run, training, note) -> None:
        type(self).options = options
        self.log[:] = [f"{options.host}:{options.port}", str(run)]
        note("port 8470 is taken, the dashboard is at 8471")

    def __enter__(self) -> FakeSidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("closed")

    def linger(self) -> None:
        self.log.append("lingers")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WAIT_SECONDS)

    def wait_for_the_last_scrape(self) -> None:
        self.log.append("was read")


@pytest.fixture
def fake_sidecar(monkeypatch) -> list[str]:
    module = ModuleType("adaptive_rec.live.sidecar")
    module.Sidecar = FakeSidecar
    monkeypatch.setitem(sys.modules, "adaptive_rec.live.sidecar", module)
    return FakeSidecar.log


def test_linger_keeps_the_service_until_ctrl_c_which_is_no_failure(tmp_path, capsys, fake_sidecar):
    out = tmp_path / "run"
    assert main(["train", "tiny", "--linger", "--host=localhost", "--port=8470", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert fake_sidecar == ["localhost:8470", str(out), "lingers", "closed"], "a signal ends all waiting"
    assert text.index("reopen") < text.index("the dashboard stays open until") < text.index("the dashboard is closed")


def test_a_resumed_run_is_served_where_it_was(tmp_path, capsys, monkeypatch, fake_sidecar):
    """A scraper finds it: port, host names and token file of the start hold again, in another working directory too."""
    monkeypatch.chdir(tmp_path)
    out, token = tmp_path / "run", tmp_path / "scrape-token"
    first = ["--port=8500", "--host=localhost", "--token-file=scrape-token", "--allow-host=gpu-box"]
    assert main(["train", "tiny", "--steps=10", *first, "--out", str(out)]) == 0
    given = FakeSidecar.options
    assert given.token_file == token.relative_to(tmp_path)
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert [path for path, content in kept.items() if token.read_bytes().strip() in content] == []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume = ["train", "--resume", "--out", str(out)]
    assert main([*resume, "--steps=20"]) == 0
    assert FakeSidecar.options == ServeOptions("localhost", 8500, ("gpu-box",), token, waits_for_port=True)
    assert main([*resume, "--steps=30", "--port=8600", "--allow-host=other"]) == 0
    assert FakeSidecar.options == ServeOptions("localhost", 8600, ("other",), token, waits_for_port=True)
    assert main([*resume, "--steps=40", "--no-serve"]) == 0
    assert main([*resume, "--steps=50"]) == 0
    assert FakeSidecar.options == ServeOptions("localhost", 8600, ("other",), token, waits_for_port=True)
    assert not (tmp_path / "elsewhere" / "scrape-token").exists()
    capsys.readouterr()


def test_a_resumed_run_without_options_takes_the_defaults(tmp_path, capsys, refused, fake_sidecar):
    out = tmp_path / "run"
    assert main(["train", "tiny", "--steps=10", "--out", str(out)]) == 0
    assert not (out / "serve.json").exists()
    assert main(["train", "--resume", "--steps=20", "--out", str(out)]) == 0
    assert FakeSidecar.options == ServeOptions()
    capsys.readouterr()
    (out / "serve.json").write_text('{"port": 123456}')
    assert "--port must be" in refused("train", "--resume", "--steps=30", "--out", str(out))
    (out / "serve.json").write_text("{")
    assert "serve.json must be" in refused("train", "--resume", "--steps=30", "--out", str(out))


def test_logs_get_the_dashboard_without_its_sign_in_code(tmp_path, capsys, fake_sidecar):
    assert main(["train", "tiny", "--json", "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"] == 60
    told = "dashboard   http://127.0.0.1:8471   (adaptive-rec dashboard prints a link that signs in)"
    assert told in captured.err.splitlines()
    assert "port 8470 is taken, the dashboard is at 8471" in captured.err.splitlines()
    assert "SECRET" not in captured.out + captured.err
    assert fake_sidecar[-1] == "closed"


def test_on_a_terminal_the_dashboard_s_link_is_whole(tmp_path, monkeypatch, fake_sidecar):
    from adaptive_rec.cli.console import Screen

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    for name, value in {"TERM": "dumb", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    screen.dashboard("http://127.0.0.1:8471", f"http://127.0.0.1:8471/#c={'x' * 48}")
    assert f"dashboard   http://127.0.0.1:8471/#c={'x' * 48}" in sys.stdout.getvalue().splitlines()
    assert "signs in once, within 10 minutes" in sys.stdout.getvalue()


@pytest.mark.parametrize("kind", ["split", "warning"])
def test_important_events_are_printed_with_their_step(capsys, kind):
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.live.telemetry import Event

    Screen().show(Event(1437, kind, "batches run whole: a step took 1.00 ms whole and 2.00 ms split"))
    warns = "warning: " * (kind == "warning")
    expected = f"step 1,437   {warns}batches run whole: a step took 1.00 ms whole and 2.00 ms split"
    assert capsys.readouterr().out.splitlines() == [expected]


def test_a_straggler_is_printed_when_it_is_named_first(capsys):
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.live.rank_report import Straggler
    from adaptive_rec.live.telemetry import Snapshot

    screen = Screen()
    for step, rank in ((10, None), (20, 1), (30, 1), (40, None), (50, 1), (60, 2)):
        slow = None if rank is None else Straggler(rank, f"rank {rank} holds up the others")
        screen.show(Snapshot(step, 100, *[0] * 11, straggler=slow))
    lines = [line for line in capsys.readouterr().out.splitlines() if "holds up" in line]
    assert lines == ["step 20   rank 1 holds up the others", "step 60   rank 2 holds up the others"]


def test_a_finished_run_is_served_again(tmp_path, told, refused):
    out = tmp_path / "run"
    told("train", "tiny", "--no-serve", "--out", str(out))
    server = subprocess.Popen([*COMMAND, "serve", str(out), "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        assert re.match(r"dashboard   http://127.0.0.1:\d+   \(adaptive-rec dashboard", line)
        assert json.loads(told("status", "--json"))["live"] is False
        assert "error" in refused("pause", code=1)
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_SECONDS) == 0
    finally:
        server.kill()
    assert under_way() == []
