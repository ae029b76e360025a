"""Signing in with a browser, and what other web pages in the same browser can do, in headless Chromium where there is one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Call
from urllib.request import urlopen

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from adaptive_rec.live.sign_in_code import VALID_SECONDS, code_clock, new_code
from adaptive_rec.service import sign_in
from adaptive_rec.service.gate import RequestGate
from adaptive_rec.service.protocol import protocol_for
from adaptive_rec.service.security import RequestLimits, Security
from adaptive_rec.service.sign_in import SignInCodes

CONTROL, READ = "control-0123456789abcdef", "read-0123456789abcdef"
LIMITS = RequestLimits(reads_per_second=1e6, reads_burst=1e6)
DASHBOARD = "<!doctype html><title>dashboard</title><h1>secret dashboard</h1>"


@dataclass
class Site:
    """A web server on a port of its own: the guarded one, or another in the same browser."""

    port: int = 0
    done: list[str] = field(default_factory=list)
    page: str = ""

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


def guarded(site: Site) -> Any:
    app = FastAPI(openapi_url=None)
    app.include_router(sign_in.router)

    @app.get("/")
    async def dashboard() -> HTMLResponse:
        return HTMLResponse(DASHBOARD)

    @app.get("/api/v1/status")
    async def status() -> dict[str, str]:
        site.done.append("read")
        return {"run": "secret"}

    @app.api_route("/api/v1/control/pause", methods=["POST", "PATCH", "PUT", "DELETE"])
    async def pause(request: Request) -> dict[str, str]:
        site.done.append(request.method)
        return {}

    return app


def other(site: Site) -> Any:
    app = FastAPI()

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(site.page)

    return app


def serve(site: Site, make: Any) -> Iterator[Site]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        site.port = sock.getsockname()[1]
        security = Security(CONTROL, READ, "127.0.0.1", site.port, ("127.0.0.1", "localhost"), LIMITS)
        app = RequestGate(make(site), security=security) if make is guarded else make(site)
        http: Any = protocol_for(security) if make is guarded else "h11"
        server = uvicorn.Server(uvicorn.Config(app, http=http, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield site
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def run() -> Iterator[Site]:
    yield from serve(Site(), guarded)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Site]:
    yield from serve(Site(), other)


class Browser:
    """As much of WebDriver as these tests need."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        wanted: dict[str, Any] = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        found = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def _call(self, method: str, path: str, values: dict[str, Any] | None = None) -> Any:
        body = None if values is None else json.dumps(values).encode()
        call = Call(self._driver + path, body, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(call, timeout=300) as reply:
                return json.load(reply)["value"]
        except HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, url: str) -> None:
        self._call("POST", self._session + "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the script returns, awaited."""
        values = {"script": f"return (async () => {{ {script} }})()", "args": list(arguments)}
        return self._call("POST", self._session + "/execute/sync", values)

    def leave(self, script: str) -> None:
        """Runs a script that leaves the page, after its own call has ended: a call fails whose page goes away."""
        self.run(f"setTimeout(() => {{ {script} }})")

    def wait_for(self, condition: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if self.run(f"return {condition}"):
                    return
            except RuntimeError:  # the page is just being replaced
                pass
            time.sleep(0.05)
        raise AssertionError(
            f"never came true: {condition}; the page says: {self.run('return document.body.innerText')}"
        )

    def cookies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", self._session + "/cookie")
        return found

    def forget(self) -> None:
        self._call("DELETE", self._session + "/cookie")

    def log(self) -> list[str]:
        return [line["message"] for line in self._call("POST", self._session + "/se/log", {"type": "browser"})]

    def close(self) -> None:
        self._call("DELETE", self._session)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromedriver")
    if program is None:
        pytest.skip("no chromedriver on the PATH")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    driver = subprocess.Popen([program, f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL)
    try:
        while driver.poll() is None:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        browser = Browser(f"http://127.0.0.1:{port}")
        yield browser
        browser.close()
    finally:
        driver.terminate()
        driver.wait()


def sign_in_with(chromium: Browser, run: Site, token: str = CONTROL) -> None:
    chromium.open(run.url())
    chromium.forget()
    chromium.open("about:blank")
    chromium.open(run.url(f"/#c={new_code(token)}"))
    chromium.wait_for("document.title === 'dashboard'")


def signed_in(run: Site, authorization: str, method: str = "POST", path: str = "/api/v1/session") -> int:
    """Return the status of the answer."""
    call = Call(run.url(path), headers={"Authorization": authorization}, method=method)
    try:
        with urlopen(call) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code


@pytest.mark.alone
def test_a_code_signs_in_once_and_opens_nothing_else(run: Site) -> None:
    code = new_code(CONTROL)
    for method, path in (("GET", "/api/v1/status"), ("DELETE", "/api/v1/session"), ("POST", "/api/v1/control/pause")):
        assert signed_in(run, f"Code {code}", method, path) == 401
    assert signed_in(run, f"Bearer {code}") == 401
    assert [signed_in(run, f"Code {code}") for _ in range(3)] == [204, 401, 401]


def test_a_code_has_the_scope_of_its_token() -> None:
    codes = SignInCodes({"control": CONTROL, "read": READ}, since=0.0)
    assert [codes.redeem(new_code(token).encode()) for token in (READ, CONTROL)] == ["read", "control"]


def test_a_code_works_once_in_whatever_spelling() -> None:
    codes = SignInCodes({"control": CONTROL, "read": READ}, since=0.0)
    code = new_code(CONTROL).encode()
    assert codes.redeem(code) == "control"
    for other in (code, code + b"!", b" " + code, code + b"\n", code[:20] + b"%" + code[20:], code + b"====", code[:-1]):
        assert codes.redeem(other) is None


def test_a_code_made_up_or_of_another_run_is_refused() -> None:
    codes = SignInCodes({"control": CONTROL, "read": READ}, since=0.0)
    code = new_code(CONTROL).encode()
    for place in range(len(code)):
        changed = code[:place] + (b"A" if code[place : place + 1] != b"A" else b"B") + code[place + 1 :]
        assert codes.redeem(changed) is None
    for wrong in (b"", b"=", b"\xff" * 48, b"A" * 48, CONTROL.encode(), new_code("control-of-another-run").encode()):
        assert codes.redeem(wrong) is None
    assert codes.redeem(code) == "control", "failures use nothing up"


def test_a_code_is_valid_for_ten_minutes_and_a_used_one_stays_used(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, made = SignInCodes({"control": CONTROL, "read": READ}, since=0.0), 1000.0

    def set_clock(seconds: float) -> None:
        monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: seconds}[clock])

    set_clock(made)
    used, late, early = (new_code(CONTROL).encode() for _ in range(3))
    assert codes.redeem(used) == "control"
    set_clock(made - VALID_SECONDS - 1)
    assert codes.redeem(early) is None, "a clock that was put back does not stretch the time"
    set_clock(made + VALID_SECONDS - 1)
    assert (codes.redeem(used), codes.redeem(early)) == (None, "control")
    set_clock(made + VALID_SECONDS + 1)
    assert (codes.redeem(late), codes.redeem(used)) == (None, None)


def test_a_replaced_sidecar_accepts_no_code_that_the_last_one_may_have_accepted() -> None:
    before = new_code(CONTROL).encode()
    time.sleep(0.002)
    codes = SignInCodes({"control": CONTROL, "read": READ}, since=code_clock())
    time.sleep(0.002)
    assert (codes.redeem(before), codes.redeem(new_code(CONTROL).encode())) == (None, "control")


@pytest.mark.alone
def test_the_page_comes_with_401_and_a_policy_for_its_own_script_only(run: Site) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(run.url())
    reply = caught.value
    page, policy = reply.read().decode(), reply.headers["content-security-policy"]
    assert (reply.code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    for element, source in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert f"{source} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\son\w+=|\sstyle=|<link(?! rel=\"icon\" href=\"data:)|\ssrc=", page)


@pytest.mark.alone
def test_only_the_front_door_shows_the_page(run: Site) -> None:
    for path in ("/index.html", "/api/v1/status", "//", "/?x#"):
        with pytest.raises(HTTPError) as caught:
            urlopen(run.url(path))
        kind = "text/html; charset=utf-8" if path.startswith("/?") else "application/problem+json"
        assert (caught.value.code, caught.value.headers["content-type"]) == (401, kind)


@pytest.mark.alone
def test_the_link_of_the_terminal_opens_the_dashboard_and_leaves_nothing_that_does(chromium: Browser, run: Site) -> None:
    sign_in_with(chromium, run)
    assert chromium.run("return location.href") == run.url()
    assert chromium.run("return document.cookie") == ""
    (cookie,) = chromium.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (f"adaptive_rec_{run.port}", True, "Strict")
    assert CONTROL not in json.dumps(cookie)
    assert not [line for line in chromium.log() if "Content Security Policy" in line]
    chromium.leave("history.back()")
    chromium.wait_for(f"location.href !== '{run.url()}'")
    assert "#" not in chromium.run("return location.href + document.referrer")


@pytest.mark.alone
def test_a_used_link_says_so_and_has_left_the_address_bar(chromium: Browser, run: Site) -> None:
    code = new_code(CONTROL)
    assert signed_in(run, f"Code {code}") == 204
    chromium.open(run.url())
    chromium.forget()
    chromium.open("about:blank")
    chromium.open(run.url(f"/#c={code}"))
    chromium.wait_for("document.getElementById('message')?.textContent.includes('This link was used before')")
    assert chromium.run("return location.href") == run.url()
    assert chromium.run("return document.activeElement.id") == "token"


@pytest.mark.alone
@pytest.mark.parametrize(
    "pasted",
    [
        "  {token} ",
        pytest.param(CONTROL, marks=pytest.mark.slow),
        pytest.param("http://127.0.0.1:8470/#c={code}", marks=pytest.mark.slow),
    ],
)
def test_a_token_or_a_link_can_be_pasted(chromium: Browser, run: Site, pasted: str) -> None:
    chromium.open(run.url())
    chromium.forget()
    chromium.open(run.url())
    chromium.wait_for("!document.getElementById('ask').hidden")
    enter = "document.getElementById('token').value = arguments[0]; document.getElementById('form').requestSubmit()"
    chromium.run(enter.replace("arguments[0]", json.dumps("späße")))
    chromium.wait_for("document.getElementById('message').textContent.includes('copy it once more')")
    chromium.leave(enter.replace("arguments[0]", json.dumps(pasted.format(token=CONTROL, code=new_code(CONTROL)))))
    chromium.wait_for("document.title === 'dashboard'")


@pytest.mark.alone
def test_a_link_pasted_into_the_open_page_signs_in(chromium: Browser, run: Site) -> None:
    chromium.open(run.url())
    chromium.forget()
    chromium.open(run.url())
    chromium.wait_for("!document.getElementById('ask').hidden")
    chromium.leave(f"location.hash = 'c={new_code(CONTROL)}'")
    chromium.wait_for("document.title === 'dashboard'")


@pytest.mark.slow
@pytest.mark.alone
def test_a_link_on_another_page_opens_the_dashboard_for_who_is_signed_in(
    chromium: Browser, run: Site, elsewhere: Site
) -> None:
    sign_in_with(chromium, run)
    for host in ("127.0.0.1", "evil.example"):
        elsewhere.page = f"<a id=a href='{run.url()}'>a run</a>"
        chromium.open(elsewhere.url(host=host))
        chromium.leave("document.getElementById('a').click()")
        chromium.wait_for("document.title === 'dashboard'")


ATTACK = """
const url = TARGET, heard = [], seconds = (n) => new Promise((done) => setTimeout(done, n * 1000));
for (const method of ["GET", "POST", "PATCH", "PUT", "DELETE"])
  for (const mode of ["cors", "no-cors"])
    for (const type of ["text/plain", "application/json"])
      await fetch(url + "api/v1/control/pause", { method, mode, credentials: "include", headers: { "Content-Type": type },
        body: method === "GET" ? undefined : "{}" }).then(async (r) => heard.push(await r.text()), () => {});
for (const mode of ["cors", "no-cors"])
  await fetch(url + "api/v1/status", { credentials: "include", mode }).then(async (r) => heard.push(await r.text()), () => {});
navigator.sendBeacon(url + "api/v1/control/pause", "{}");
const put = (name, attributes) => document.body.append(Object.assign(document.createElement(name), attributes));
window.onerror = (message) => { heard.push(message.includes("Script error") ? "" : message); };
put("script", { src: url + "api/v1/status" });
put("img", { src: url + "api/v1/status", onload: () => heard.push("an image") });
put("iframe", { src: url, name: "frame" });
put("iframe", { name: "target" });
put("form", { method: "POST", action: url + "api/v1/control/pause", target: "target", enctype: "text/plain" });
document.querySelector("form").submit();
const events = new EventSource(url + "api/v1/status", { withCredentials: true });
events.onopen = () => heard.push("a stream");
const ws = new WebSocket(url.replace("http", "ws") + "api/v1/stream");
ws.onopen = () => heard.push("a socket");
await seconds(0.5);
events.close();
return heard.filter((text) => text !== "");
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    "host", ["127.0.0.1", *(pytest.param(host, marks=pytest.mark.slow) for host in ("localhost", "evil.example"))]
)
def test_other_pages_read_nothing_and_change_nothing(chromium: Browser, run: Site, elsewhere: Site, host: str) -> None:
    """Pages of other ports of the same host are the hard case: for SameSite cookies they are the same site."""
    sign_in_with(chromium, run)
    run.done.clear()
    assert chromium.run("return (await fetch('/api/v1/status')).status") == 200
    assert chromium.run("return (await fetch('/api/v1/control/pause', {method: 'POST'})).status") == 200
    assert run.done == ["read", "POST"], "its own page can"
    run.done.clear()
    elsewhere.page = "<!doctype html><link rel=icon href=data:,><title>elsewhere</title><body>"
    chromium.open(elsewhere.url(host=host))
    heard = chromium.run(ATTACK.replace("TARGET", json.dumps(run.url())))
    assert (heard, run.done) == ([], [])


@pytest.mark.alone
def test_a_name_made_to_point_here_reads_nothing(chromium: Browser, run: Site) -> None:
    sign_in_with(chromium, run)
    run.done.clear()
    chromium.open(run.url(host="rebound.example"))
    assert json.loads(chromium.run("return document.body.innerText"))["status"] == 421
    calls = "const get = async (path, how) => (await fetch(path, how)).status; const token = {Authorization: 'Bearer ' + TOKEN};"
    calls += "return [await get('/api/v1/status'), await get('/livez'), await get('/api/v1/status', {headers: token}),"
    calls += " await get('/api/v1/control/pause', {method: 'POST', headers: token})]"
    assert chromium.run(calls.replace("TOKEN", json.dumps(CONTROL))) == [421, 421, 421, 421]
    assert run.done == []
