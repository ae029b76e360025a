"""The trainer's side of its sidecar, with sidecars that misbehave: a few lines of Python in place of the real one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive_rec.config.knobs import knobs_version
from adaptive_rec.config.tree import load_config
from adaptive_rec.errors import AdaptiveRecError, ConfigError
from adaptive_rec.live import runtime_file, sidecar
from adaptive_rec.live.channel import SidecarChannel
from adaptive_rec.live.listen import ServeOptions
from adaptive_rec.live.sidecar import Sidecar
from adaptive_rec.live.telemetry import Event
from adaptive_rec.policy.find import load_policy, policy_choices
from adaptive_rec.run.training_run import TrainingRun
from tests.stopwatch import Stopwatch

from .conftest import wait_for

pytestmark = pytest.mark.alone

TINY = ["run.threads=1", "run.device=cpu", "run.steps=0", "knobs.report_every=1"]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingRun:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "home"))
    return TrainingRun(load_config("tiny", {}, TINY), tmp_path / "run")


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Puts a program in the sidecar's place; `link` is its socket, `hello` what it was told. It begins with `first`."""

    def stand_in(program: str, first: str = "") -> None:
        package = tmp_path / "stand_in" / "adaptive_rec_stand_in"
        package.mkdir(parents=True)
        start = (
            f"import json, socket, sys, time\n{first}\n"
            "link = socket.socket(fileno=int(sys.argv[sys.argv.index('--link') + 1]))\n"
            "lines = link.makefile('rb')\nhello = json.loads(lines.readline())\n"
            "def say(**message): link.sendall(json.dumps(message).encode() + b'\\n')\n"
        )
        (package / "__main__.py").write_text(start + program)
        (package / "__init__.py").touch()
        real = sidecar.subprocess.Popen

        def start_other(command: list[str], **settings: Any) -> Any:
            settings["env"]["PYTHONPATH"] += f":{tmp_path / 'stand_in'}"
            return real([word.replace("adaptive_rec.service", "adaptive_rec_stand_in") for word in command], **settings)

        monkeypatch.setattr(sidecar.subprocess, "Popen", start_other)

    return stand_in


def serve(training: TrainingRun, notes: list[str]) -> Sidecar:
    return Sidecar(ServeOptions(port=0), training.out, training.runtime, notes.append)


def test_an_answer_goes_to_the_sidecar_that_sent_the_command(training: TrainingRun, standing_in: Any, tmp_path: Path) -> None:
    """The first one asks for a pause and dies; the second asks for a checkpoint under the same number."""
    told = tmp_path / "told"
    standing_in(
        "import pathlib\n"
        f"mark, told = pathlib.Path({str(tmp_path / 'mark')!r}), pathlib.Path({str(told)!r})\n"
        "if not mark.exists():\n    mark.touch(); say(id=1, command='reclassify'); sys.exit(3)\n"
        "say(id=1, command='pause')\n"
        "for line in lines:\n"
        "    with told.open('ab') as file: file.write(line)\n"
    )
    notes: list[str] = []

    def answers() -> list[Any]:
        return [message for message in map(json.loads, told.read_text().splitlines()) if "id" in message]

    def hurry_when_paused() -> None:
        wait_for(lambda: len(answers()) == 2)
        training.runtime.hurry()

    with serve(training, notes):
        wait_for(lambda: training.runtime.mailbox._commands.qsize() >= 2)  # both wait for a step boundary
        wait_for(lambda: (tmp_path / "mark").exists() and len(notes) == 1)
        wait_for(lambda: told.exists() and b"accepted" in told.read_bytes())  # the second one's pause waits, too
        threading.Thread(target=hurry_when_paused).start()
        list(training.events())
    accepted, done = {"id": 1, "accepted": {}}, {"id": 1, "step": 1}
    assert answers() == [accepted, done], "those of the pause, and no other"
    assert "ended (exit code 3)" in notes[0]


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "command": "shout"},
        {"id": 1, "command": ["pause"]},
        {"id": 1, "command": "pause", "changes": {"x": 1}},
        {"id": 1, "command": "change_knobs", "changes": [1]},
        {"id": 1, "command": "note", "changes": {"kind": "x", "text": "y"}},
        {"id": 1, "command": "change_knobs", "changes": {"alpha": "high"}},
    ],
)
def test_nonsense_is_refused(training: TrainingRun, message: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serve(training, [])._take(SidecarChannel(ours), message)
        answer = json.loads(theirs.recv(4096))
    assert (answer["id"], answer["status"]) == (1, 422)
    assert training.runtime.mailbox.drain() == []


def test_a_wrong_change_of_knobs_changes_nothing_and_is_not_in_the_journal(training: TrainingRun) -> None:
    ours, theirs = socket.socketpair()
    mailbox = training.runtime.mailbox
    before = mailbox.desired
    version = knobs_version(before.model_dump())
    changes = [
        ({"alpha": 2, "sample_ratio": "low", "hysteresis": 0.2}, [version], 422),
        ({"policy": "adaptive_rec.policies.hybrid:POLICY"}, None, 422),
        ({"policy": "fae"}, None, 409),
        ({"alpha": 0.8}, ["0" * 32], 412),
    ]
    with ours, theirs:
        for number, (values, versions, status) in enumerate(changes):
            message = {"id": number, "command": "change_knobs", "changes": values, "versions": versions}
            serve(training, [])._take(SidecarChannel(ours), message)
            answer = json.loads(theirs.recv(4096))
            assert (answer["id"], answer["status"]) == (number, status)
            if number == 0:
                assert answer["errors"] == [
                    {"knob": "sample_ratio", "detail": "must be a number, got 'low'"},
                    {"knob": "alpha", "detail": "must be at most 1, got 2"},
                ]
    assert mailbox.desired == before
    assert mailbox.drain() == []
    threading.Timer(1.0, training.runtime.hurry).start()
    assert {event.kind for event in training.events() if isinstance(event, Event)}.isdisjoint({"knobs", "warning"})


@pytest.mark.parametrize("text", [b"[]\n", b"{}\n", b'{"id": "x"}\n', b"no json\n", b'{"id": 1.5}\n'])
def test_a_sidecar_that_makes_no_sense_is_heard_no_more(text: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"id": 7}\n' + text + b'{"id": 8}\n')
        assert list(SidecarChannel(ours).listen()) == [{"id": 7}]


def test_who_does_not_read_is_hung_up_on() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = SidecarChannel(ours)
        watch = Stopwatch()
        for number in range(100_000):
            link.send(lambda number=number: {"id": number, "text": "x" * 100})  # type: ignore[misc]
            if number > 50 and ours.fileno() and not _open(ours):
                break
        assert watch.seconds < 5
        assert number < 99_999


def _open(channel: socket.socket) -> bool:
    try:
        channel.send(b"", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def test_a_sidecar_that_never_starts_is_tried_less_and_less(
    training: TrainingRun, standing_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "MAX_FAILED_STARTS", 2)
    standing_in("sys.exit(1)")
    notes: list[str] = []
    with serve(training, notes):
        wait_for(lambda: any("once a minute" in note for note in notes))
        time.sleep(1)
    assert len(notes) == 3


def test_leaving_at_any_moment_leaves_nothing_behind(training: TrainingRun, standing_in: Any) -> None:
    standing_in("for line in lines: pass")
    for wait in (0.0, 0.001, 0.005, 0.01, 0.05):
        one = serve(training, [])
        with one:
            time.sleep(wait)
        assert not one._thread.is_alive()
        assert one._process is None or one._process.poll() is not None
        assert runtime_file.under_way() == []
        assert training.runtime.publisher.writer is None
        with (
            pytest.raises(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", one._listeners.port), timeout=1),
        ):
            pass


def test_a_start_that_fails_leaves_nothing_behind(training: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(runtime_file, "write_runtime_file", fail)
    one = serve(training, [])
    with pytest.raises(OSError, match="no space"), one:
        pass
    assert training.runtime.publisher.writer is None
    assert not one._listeners.unix_path.exists()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", one._listeners.port), timeout=1):
        pass


def test_a_broken_plugin_harms_only_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "broken"

        def load(self) -> None:
            raise ImportError("libfoo.so: cannot open shared object file")

    for module in ("config.trust", "policy.find"):  # where one is looked for by its name, and where all are listed
        monkeypatch.setattr(f"adaptive_rec.{module}.entry_points", lambda group: [Point()])
    with pytest.raises(ConfigError, match=r"broken cannot be loaded: ImportError: libfoo\.so"):
        load_policy("broken")
    choices = {choice["name"]: choice for choice in policy_choices("hybrid")}
    assert not choices["broken"]["live"]
    assert "libfoo.so" in choices["broken"]["reason"]
    assert choices["slipstream"]["live"]


def test_a_run_that_cannot_be_served_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its description is JSON and nothing more: the real sidecar says so and is not tried again."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "home"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"tables": 7}')
    notes: list[str] = []
    assert sidecar.serve_finished(run, ServeOptions(port=0), lambda _: None, notes.append) == 1
    assert [note for note in notes if "cannot be served" in note]
    assert "run.json" in (run / "sidecar.log").read_text()
    (run / "run.json").write_text("no json")
    with pytest.raises(AdaptiveRecError, match="must be the description of a run"):
        sidecar.serve_finished(run, ServeOptions(port=0), lambda _: None, notes.append)


def test_a_run_is_given_up_also_where_its_sidecar_ends_slowly(training: TrainingRun, standing_in: Any) -> None:
    """On a busy machine it was killed before it had an exit code, and started again and again."""
    standing_in("lines.close()\nlink.close()\ntime.sleep(1)\nsys.exit(2)")
    notes: list[str] = []
    with serve(training, notes) as one:
        wait_for(lambda: notes)
    assert one.useless
    assert "cannot be served" in notes[0]


@pytest.mark.slow
def test_a_sidecar_that_loops_is_replaced(training: TrainingRun, standing_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_rec.live.heartbeat.HUNG_SECONDS", 0.5)
    standing_in("say(id=0, command='ready')\nwhile True: pass")
    notes: list[str] = []
    with serve(training, notes):
        wait_for(lambda: len(notes) >= 2)
    assert all("did not answer" in note for note in notes)


def test_a_sidecar_that_does_not_even_read_holds_up_nothing(training: TrainingRun, standing_in: Any) -> None:
    """The first line may be longer than what fits into the link."""
    standing_in("", first="time.sleep(1000)")
    one = serve(training, [])
    one._hello["tables"] = ["x" * 100] * 100_000
    with one:
        wait_for(lambda: one._process)
        time.sleep(1)
        watch = Stopwatch()
    assert watch.seconds < 12
    assert not one._thread.is_alive()
    assert one._process is not None
    assert one._process.poll() is not None
