"""The HTTP client: where requests go, what they carry, and what becomes of refusals."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from adaptive_rec.cli.client import ApiError, Client, UnreachableError, connect
from adaptive_rec.errors import AdaptiveRecError, UsageError


def test_requests_to_a_local_run_use_its_socket_and_token(service):
    with connect(None, None) as client:
        answer = client.get("/knobs")
    assert answer.body["effective_since_step"] == 40
    assert answer.etag == '"one"'
    request = service.requests[0]
    assert request["over"] == "unix"
    assert request["headers"]["authorization"] == "Bearer control-token-of-the-tests"
    assert request["headers"]["host"] == "localhost"


def test_a_url_takes_its_token_from_the_environment(service, monkeypatch):
    with pytest.raises(UsageError, match="ADAPTIVE_REC_TOKEN is not set"):
        connect(None, service.url)
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "abc")
    with connect(None, service.url + "/") as client:
        client.get("/status")
    request = service.requests[0]
    assert (request["over"], request["path"]) == ("tcp", "/api/v1/status")
    assert request["headers"]["authorization"] == "Bearer abc"
    assert request["headers"]["host"] == service.url.removeprefix("http://")


@pytest.mark.parametrize("token", ["two words", "new\nline", "ümlaut"])
def test_a_token_that_no_header_can_carry_is_refused(monkeypatch, token):
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", token)
    with pytest.raises(UsageError, match="ADAPTIVE_REC_TOKEN must hold a token") as caught:
        connect(None, "http://127.0.0.1:1")
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("127.0.0.1:8470", "must be like"),
        ("file:///etc/passwd", "must be like"),
        ("http://", "must be like"),
        ("http://[oops", "must be like"),
        ("http://127.0.0.1:8470/#c=SECRET", "takes no token"),
        ("http://127.0.0.1:8470/?t=SECRET", "takes no token"),
        ("http://me:SECRET@127.0.0.1:8470", "takes no token"),
    ],
)
def test_a_url_is_an_address_and_nothing_else(monkeypatch, url, rule):
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "abc")
    with pytest.raises(UsageError, match=rule) as caught:
        connect(None, url)
    assert "SECRET" not in str(caught.value)


def test_run_and_url_together_are_refused(service):
    with pytest.raises(UsageError, match="give one of them"):
        connect("criteo", service.url)


def test_no_redirect_is_followed(service):
    service.answer("GET", "/api/v1/status", {}, 307, Location=f"{service.url}/api/v1/stats")
    with connect(None, None) as client, pytest.raises(ApiError, match="redirect, which is not followed"):
        client.get("/status")
    assert service.paths() == ["GET /api/v1/status"]


def test_proxies_of_the_environment_are_left_alone(service, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "abc")
    with connect(None, service.url) as client:
        assert client.get("/status").status == 200


def test_a_problem_becomes_an_error_with_its_detail(service):
    faults = [{"knob": "alpha", "detail": "must be at most 1"}, {"knob": "decay", "detail": "said already"}]
    service.refuse("PATCH", "/api/v1/knobs", 422, "two knobs are wrong; decay: said already", errors=faults)
    with connect(None, None) as client, pytest.raises(AdaptiveRecError) as caught:
        client.patch("/knobs", {"alpha": 2}, '"one"')
    error = caught.value
    assert isinstance(error, ApiError)
    assert str(error) == "two knobs are wrong; decay: said already\n  alpha: must be at most 1"
    assert (error.status, error.exit_code) == (422, 2)
    headers = service.requests[0]["headers"]
    assert (headers["content-type"], headers["if-match"]) == ("application/merge-patch+json", '"one"')


def test_a_wrong_token_says_where_the_right_one_is(service, monkeypatch):
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "wrong-one")
    service.refuse("GET", "/api/v1/status", 401, "the token is not valid")
    with (
        connect(None, service.url) as client,
        pytest.raises(ApiError, match="adaptive-rec dashboard --header prints it") as caught,
    ):
        client.get("/status")
    assert "wrong-one" not in str(caught.value)


def test_an_error_without_a_problem_is_reported_by_its_status(service):
    service.answer("GET", "/api/v1/status", b"<html>", 502)
    with connect(None, None) as client, pytest.raises(ApiError, match="answered 502"):
        client.get("/status")


@pytest.mark.parametrize("body", [b"<html>hello", b"[1]", b"\xff"])
def test_a_stranger_that_answers_is_no_service(service, body):
    service.answer("GET", "/api/v1/status", body)
    with connect(None, None) as client, pytest.raises(UnreachableError, match="is no adaptive-rec service"):
        client.get("/status")


def test_an_unreachable_service_is_reported():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(url, "abc") as client, pytest.raises(UnreachableError, match=f"{url} cannot be reached: ") as caught:
            client.get("/status")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_a_run_that_ends_during_a_request_is_reported(said):
    def answer():
        connection, _ = ending.accept()
        connection.recv(1 << 16)
        connection.sendall(said)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that close resets it
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as ending:
        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{ending.getsockname()[1]}"
        told = f"{url} broke the connection off, the run may be ending: "
        with Client(url, "abc") as client, pytest.raises(UnreachableError, match=told) as caught:
            client.get("/status")
    assert caught.value.exit_code == 1


def test_silence_has_a_limit(monkeypatch):
    monkeypatch.setattr("adaptive_rec.cli.client.TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, "abc") as client, pytest.raises(UnreachableError, match="gave no answer within"):
            client.get("/status")


def test_without_a_socket_requests_use_the_address(service, runtime_folder):
    next(runtime_folder.glob("*.sock")).unlink()
    with connect(None, None) as client:
        client.get("/status")
    assert service.requests[0]["over"] == "tcp"


def test_an_address_may_have_a_path(service, monkeypatch):
    """Behind a proxy that serves several runs."""
    monkeypatch.setenv("ADAPTIVE_REC_TOKEN", "abc")
    service.answer("GET", "/runs/a/api/v1/status", {"step": 3})
    with connect(None, service.url + "/runs/a/") as client:
        assert client.get("/status").body == {"step": 3}


def test_a_query_is_encoded_and_an_empty_body_has_no_type(service):
    service.answer("POST", "/api/v1/knobs/undo", {"changed": {}})
    with connect(None, None) as client:
        client.post("/knobs/undo", None, why="zu schnell & \udcff", dry_run=1)
    [request] = service.requests
    assert request["query"] == "why=zu+schnell+%26+%3F&dry_run=1"
    assert request["body"] is None
    assert "content-type" not in request["headers"]


def test_an_https_address_speaks_tls():
    """A server that answers without cannot be reached, and is sent no token."""
    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=lambda: plain.accept()[0].sendall(b"HTTP/1.1 200 OK\r\n\r\n{}"), daemon=True).start()
        url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with Client(url, "abc") as client, pytest.raises(UnreachableError, match="cannot be reached: .*SSL"):
            client.get("/status")
