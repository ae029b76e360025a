"""A rival in a process of its own, so that it runs as its users run it.

Our command line makes OpenMP's threads sleep when they wait (`OMP_WAIT_POLICY=PASSIVE`), since other threads of ours need the
cores. PyTorch's default lets them spin, which suits its many short operations: a rival is not to pay for our choice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.gpu.contestants import Contestant
from benchmarks.gpu.explain import explain
from benchmarks.gpu.machine import ROOT


class Apart:
    """A contestant in another process, asked over a pipe: a line of JSON each way."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self.window_steps, self._steps = name, 1, 0
        replies, write_end = os.pipe()
        command = [sys.executable, "-m", "benchmarks.gpu", *words, "--serve-rival", name, "--reply-to", str(write_end)]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, pass_fds=[write_end], text=True
        )
        os.close(write_end)
        self._replies = os.fdopen(replies, encoding="utf-8")
        self._ready = False

    @property
    def steps(self) -> int:
        return self._steps

    def _hear(self) -> Any:
        line = self._replies.readline()
        if not line:
            raise RuntimeError(f"{self.name}: its process has ended, exit status {self._process.wait(30)}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def _ask(self, **request: Any) -> Any:
        if not self._ready:
            self._hear()  # it was set up while others were
            self._ready = True
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def drive(self, steps: int) -> int:
        done = int(self._ask(drive=steps))
        self._steps += done
        return done

    def counters(self) -> dict[str, float]:
        return dict(self._ask(counters=True))

    def facts(self) -> dict[str, Any]:
        return dict(self._ask(facts=True))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._replies.close()


def serve(contestant: Contestant | Exception, reply_to: int) -> None:
    """The other end: answer until the pipe is closed."""
    with os.fdopen(reply_to, "w", encoding="utf-8") as replies:

        def reply(**answer: Any) -> None:
            replies.write(json.dumps(answer) + "\n")
            replies.flush()

        if isinstance(contestant, Exception):
            reply(error=explain(contestant))
            return
        reply(value="ready")
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if "drive" in request:
                    reply(value=contestant.drive(request["drive"]))
                else:
                    reply(value=contestant.counters() if "counters" in request else contestant.facts())
            except Exception as error:
                reply(error=explain(error))
                return
