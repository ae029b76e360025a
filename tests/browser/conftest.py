"""A real run, its real sidecar and a real browser. Skipped, with the reason, where no browser can be had."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from adaptive_rec.live.sign_in_code import new_code
from tests import forked

START_SECONDS = 120
TRAIN = ["train", "tiny", "--steps=0", "--set=data.synthetic.samples=1000000000"]
PACED = "tests.live.paced"
"""Runs without end make their steps slowly: nobody looks at most of them."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """What `condition` returns once it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class Served:
    """A process that serves a run: `adaptive-rec train` or `adaptive-rec serve`."""

    pid: int
    run: Path
    url: str
    token: str
    read_token: str

    @property
    def dashboard_url(self) -> str:
        """A new link each time: a code works once."""
        return f"{self.url}/#c={new_code(self.token)}"

    def get(self, path: str) -> Any:
        request = Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def sidecar(self) -> int | None:
        """The process id of the sidecar, which is a child of this process."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                words = folder.joinpath("cmdline").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue  # it has just ended
            if parent == self.pid and b"adaptive_rec.service" in words:
                return int(folder.name)
        return None


@contextmanager
def serving(run: Path, words: list[str]) -> Iterator[Served]:
    """`adaptive-rec` with these words, from when its runtime file is there. The socket's path must be short.

    It begins with its libraries loaded; its sidecar is a fresh process.
    """
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="ar") as runtime:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        log, environment = Path(runtime) / "log.txt", {**os.environ, "XDG_RUNTIME_DIR": runtime}
        with log.open("wb") as output:
            first = PACED if words[: len(TRAIN)] == TRAIN else ""
            process = forked.start([*words, f"--port={port}"], output.fileno(), environment, first=first)
        file = Path(runtime) / "adaptive-rec" / f"{process.pid}.json"
        try:
            wait_for(lambda: file.exists() or process.poll() is not None, "the runtime file", START_SECONDS)
            assert process.poll() is None, log.read_text()
            values = json.loads(file.read_text())
            yield Served(process.pid, run, values["url"], values["control_token"], values["read_token"])
        finally:
            for name in (signal.SIGTERM, signal.SIGKILL):
                process.send_signal(name)
                try:
                    process.wait(15)
                    break
                except subprocess.TimeoutExpired:
                    continue


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, with a log of its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium on the path" if chromium is None else "no chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # Without its sandbox, since that cannot be had in many containers; it is shown our own pages only.
    # One process draws all pages, as each new one takes a second.
    words = (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,800", "--disable-gpu",
        "--process-per-site", "--renderer-process-limit=1", "--disable-extensions", "--disable-background-networking",
    )  # fmt: skip
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    page = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    page.set_script_timeout(60)
    yield page
    page.quit()


@pytest.fixture(scope="session")
def training(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run without end."""
    run = tmp_path_factory.mktemp("browser") / "run"
    with serving(run, [*TRAIN, f"--out={run}"]) as served:
        wait_for(lambda: served.get("/api/v1/status")["step"] > 0, "the first step", START_SECONDS)
        yield served


@pytest.fixture
def signed_in(browser: Any, training: Served) -> Any:
    """The page of the run without end, live."""
    browser.get("about:blank")
    browser.get(training.dashboard_url)
    shown = "return document.querySelector('#connection')?.textContent ?? ''"
    wait_for(lambda: "live" in browser.execute_script(shown), "the live stream")
    return browser
