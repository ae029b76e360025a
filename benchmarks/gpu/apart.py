"""A rival in a process of its own, so that it runs as its users run it.

Our command line makes OpenMP's threads sleep soon when they wait, since other threads of ours need the cores. PyTorch's
default lets them spin, which suits its many short operations: a rival is not to pay for our choice.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from adaptive_rec.batch import Batch
from adaptive_rec.system.openmp import SPINS
from benchmarks.common.contestants import Contestant
from benchmarks.common.machine import ROOT
from benchmarks.common.process import Process
from benchmarks.common.results import explain
from benchmarks.gpu.shared_batches import taken

PROMPT_SECONDS = 10.0
"""What any answer may take; steps may take `PATIENCE` times what they took before."""
PATIENCE = 5
WAITING = ("OMP_WAIT_POLICY", SPINS)
UNKNOWN_SECONDS = 3600.0
CLOSE_SECONDS = 0.1


class NotReady(RuntimeError):
    """A rival was not set up in time."""


class Apart(Process):
    """A contestant in another process, asked over a pipe: a line of JSON each way. One that does not answer is ended.

    It begins to set itself up at once, beside others; `wait` until it is ready before anything else is asked.
    """

    def __init__(self, name: str, words: list[str], batches: int | None = None, spins: bool = True) -> None:
        """`batches` is the descriptor of the memory in which `give` will say that they lie; None: it makes its own. `spins`:
        whether its threads wait as by PyTorch's default, or as ours."""
        self.name, self.window_steps, self.steps = name, 1, 0
        self._step_seconds, self._closed = 0.0, False
        replies, write_end = os.pipe()
        shared = [] if batches is None else ["--batches", str(batches)]
        command = ["-m", "benchmarks.gpu", *words, "--serve-rival", name, "--reply-to", str(write_end), *shared]
        environment = {key: value for key, value in os.environ.items() if not (spins and key in WAITING)}
        self._start(command, environment, cwd=ROOT, pass_fds=[write_end] if batches is None else [write_end, batches])
        os.close(write_end)
        self._answers = os.fdopen(replies)

    def give(self, contents: list[int]) -> None:
        """Say where the batches lie."""
        self.say(json.dumps({"contents": contents}))

    def wait(self, until: float) -> None:
        """Return when it is set up. Raises NotReady where it is not by then, of `time.perf_counter`."""
        try:
            self.answer(until - time.perf_counter())
        except TimeoutError:
            raise NotReady(f"{self.name}: was not set up in time") from None

    def answer(self, seconds: float = UNKNOWN_SECONDS) -> Any:
        reply = super().answer(seconds)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def _ask(self, seconds: float = 0.0, **request: Any) -> Any:
        seconds = max(PROMPT_SECONDS, seconds)
        self.say(json.dumps(request))
        try:
            return self.answer(seconds)
        except TimeoutError:
            self._process.kill()
            raise RuntimeError(f"{self.name}: no answer in {seconds:.1f} s, its process was ended") from None

    def drive(self, steps: int) -> int:
        """The first steps of all compile: they may take what the caller gives them (see `limit.py`)."""
        known = PATIENCE * steps * self._step_seconds if self._step_seconds else UNKNOWN_SECONDS
        began = time.perf_counter()
        done = int(self._ask(known, drive=steps))
        if self.steps:
            self._step_seconds = max(self._step_seconds, (time.perf_counter() - began) / done)
        self.steps += done
        return done

    def settle(self) -> None:
        """Nothing is left to wait for: `drive` answers when its device has done everything."""

    def counters(self) -> dict[str, float]:
        return dict(self._ask(counters=True))

    def facts(self) -> dict[str, Any]:
        return dict(self._ask(facts=True))

    def kill(self) -> None:
        """End its process, whatever it is doing."""
        self._process.kill()

    def close(self) -> None:
        """End it: all answers that were wanted are here. May be called again."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # it may have much memory to give back
            self._process.wait(CLOSE_SECONDS)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._answers.close()


# The other end -------------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Be killed when the process that asks ends, however it does."""
    asks = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != asks:
        os._exit(1)


def given_batches(descriptor: int) -> list[Batch]:
    """Wait until the process that asks has said where the batches lie."""
    line = sys.stdin.readline()
    if not line:
        os._exit(1)  # it has ended
    return taken(descriptor, json.loads(line)["contents"])


def serve(contestant: Contestant | Exception, reply_to: int) -> None:
    """Answer until the pipe is closed, at either end."""

    def reply(**answer: Any) -> None:
        words = memoryview((json.dumps(answer) + "\n").encode())
        while words:
            words = words[os.write(reply_to, words) :]

    with suppress(BrokenPipeError):
        if isinstance(contestant, Exception):
            reply(error=explain(contestant))
            return
        reply(value="ready")
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if "drive" in request:
                    answer: Any = contestant.drive(request["drive"])
                else:
                    answer = contestant.counters() if "counters" in request else contestant.facts()
            except Exception as error:
                reply(error=explain(error))
                return
            reply(value=answer)
