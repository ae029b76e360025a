"""A rival in a process of its own, so that it runs as its users run it.

Our command line makes OpenMP's threads sleep soon when they wait, since other threads of ours need the cores. PyTorch's
default lets them spin, which suits its many short operations: a rival is not to pay for our choice.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from adaptive_rec.system.openmp import SPINS
from benchmarks.common.contestants import Contestant
from benchmarks.common.explain import explain
from benchmarks.common.machine import ROOT

LATE_SECONDS = 10.0
"""By which an answer may come after the deadline."""
PROMPT_SECONDS = 10.0
"""What any answer may take; steps may take `PATIENCE` times what they took before."""
PATIENCE = 5


class Apart:
    """A contestant in another process, asked over a pipe: a line of JSON each way. One that does not answer is ended."""

    def __init__(self, name: str, words: list[str], deadline: float) -> None:
        self.name, self.window_steps, self._steps = name, 1, 0
        self._deadline, self._step_seconds, self._heard = deadline, 0.0, b""
        replies, write_end = os.pipe()
        command = [sys.executable, "-m", "benchmarks.gpu", *words, "--serve-rival", name, "--reply-to", str(write_end)]
        environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", SPINS)}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, pass_fds=[write_end], text=True
        )
        os.close(write_end)
        self._replies = replies
        self._ready = False

    @property
    def steps(self) -> int:
        return self._steps

    def _hear(self, seconds: float) -> Any:
        began = time.perf_counter()
        until = min(self._deadline + LATE_SECONDS, began + seconds)
        while b"\n" not in self._heard:
            if not select.select([self._replies], [], [], max(0.0, until - time.perf_counter()))[0]:
                self._process.kill()
                raise RuntimeError(f"{self.name}: no answer in {until - began:.1f} s, its process was ended")
            part = os.read(self._replies, 1 << 16)
            if not part:
                raise RuntimeError(f"{self.name}: its process has ended, exit status {self._process.wait(30)}")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def _ask(self, seconds: float = PROMPT_SECONDS, **request: Any) -> Any:
        if not self._ready:
            self._hear(self._most_of_what_is_left())  # it was set up while others were
            self._ready = True
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._hear(seconds)

    def _most_of_what_is_left(self) -> float:
        """The others are to have some time too, should it never answer."""
        return max(PROMPT_SECONDS, 0.7 * (self._deadline - time.perf_counter()))

    def drive(self, steps: int) -> int:
        known = max(PROMPT_SECONDS, PATIENCE * steps * self._step_seconds)
        began = time.perf_counter()
        done = int(self._ask(known if self._step_seconds else self._most_of_what_is_left(), drive=steps))
        if self._steps:  # the first steps of all compile
            self._step_seconds = max(self._step_seconds, (time.perf_counter() - began) / done)
        self._steps += done
        return done

    def settle(self) -> None:
        """Nothing is left to wait for: `drive` answers when its device has done everything."""

    def counters(self) -> dict[str, float]:
        return dict(self._ask(counters=True))

    def facts(self) -> dict[str, Any]:
        return dict(self._ask(facts=True))

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)


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
