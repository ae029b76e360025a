"""Where a run listens and with which tokens: rules that are told, files that are kept."""

from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest

from adaptive_rec.errors import UsageError
from adaptive_rec.live import listen
from adaptive_rec.live.listen import Listeners, ServeOptions


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_listening_for_the_network_needs_names(host: str) -> None:
    with pytest.raises(UsageError, match="--allow-host"):
        ServeOptions(host=host)
    assert not ServeOptions(host=host, allow_hosts=("gpu-box",)).is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"])
def test_loopback_needs_none(host: str) -> None:
    assert ServeOptions(host=host).is_loopback


@pytest.mark.parametrize("port", [-1, 65536])
def test_ports_have_limits(port: int) -> None:
    with pytest.raises(UsageError, match=f"between 0 and 65535, got {port}"):
        ServeOptions(port=port)


def test_listeners_match_what_the_sidecar_receives(tmp_path: Path) -> None:
    notes: list[str] = []
    listeners = Listeners(ServeOptions(port=0, allow_hosts=("gpu-box",)), tmp_path / "s", notes.append)
    told = listeners.described()
    assert told["allow_hosts"] == ["127.0.0.1", "localhost", "[::1]", "gpu-box"]
    assert [entry["kind"] for entry in told["listeners"]] == ["tcp", "unix"]
    assert listeners.url == f"http://127.0.0.1:{told['port']}"
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert notes == []
    with socket.create_connection(("127.0.0.1", told["port"])):
        pass
    listeners.close()


def test_a_taken_port_is_passed_over_and_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        notes: list[str] = []
        listeners = Listeners(ServeOptions(port=port), tmp_path / "s", notes.append)
        assert port < listeners.port < port + 50
        assert notes == [f"port {port} is taken, the dashboard is at {listeners.port}"]
        listeners.close()


def test_a_port_that_becomes_free_is_waited_for(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    threading.Timer(0.3, taken.close).start()
    notes: list[str] = []
    listeners = Listeners(ServeOptions(port=port, waits_for_port=True), tmp_path / "s", notes.append)
    assert (listeners.port, notes) == (port, [])
    listeners.close()


def test_a_port_that_stays_taken_is_passed_over_after_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PORT_WAIT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        notes: list[str] = []
        listeners = Listeners(ServeOptions(port=port, waits_for_port=True), tmp_path / "s", notes.append)
        assert listeners.port > port
        assert notes == [f"port {port} is taken, the dashboard is at {listeners.port}"]
        listeners.close()


def test_an_address_of_another_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"203\.0\.113\.7 cannot be listened on"):
        Listeners(ServeOptions(host="203.0.113.7", allow_hosts=("x",)), tmp_path / "s", lambda _: None)


def test_a_token_file_is_made_once_and_then_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = ServeOptions(token_file=path).read_token()
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ServeOptions(token_file=path).read_token() == token
    assert ServeOptions().read_token() != ServeOptions().read_token()


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("short", 0o600, "at least 32 characters, got 5"),
        ("two words " * 5, 0o600, "one token"),
        ("x" * 40, 0o644, "mode is 644"),
        ("x" * 40, 0o620, "mode is 620"),
        ("ü" * 40, 0o600, "cannot be read"),
    ],
)
def test_a_token_file_that_is_no_secret_is_refused(tmp_path: Path, content: str, mode: int, said: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(UsageError, match=said):
        ServeOptions(token_file=path).read_token()


def test_a_token_file_may_be_read_by_a_scrapers_group(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("x" * 40 + "\n")
    path.chmod(0o640)
    assert ServeOptions(token_file=path).read_token() == "x" * 40
