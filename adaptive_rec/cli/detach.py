"""``train --detach``: training in the background, in a session of its own."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.output import printable_path, say
from adaptive_rec.cli.parser import on_terminal
from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.run.new_directory import is_held_by
from adaptive_rec.system.drafts import draft_file
from adaptive_rec.system.own_files import open_own

if TYPE_CHECKING:
    import subprocess

    from adaptive_rec.live.runtime_file import RuntimeFile

LOG = "log.txt"
SIDECAR_SECONDS = 5.0
"""Time that training may be under way without a sidecar, which starts before the first step."""


def detach(words: list[str], out: Path, resume: bool, serve: bool, as_json: bool) -> int:
    """Start the same command in a session of its own. Returns once it trains, or has ended, then with its exit code.

    With --verify the data was verified before, so the child does not do it again. The child creates the run directory. Its log
    is a draft next to that directory and is moved into it later: not that of a start that was refused, as another one may have
    made the directory.
    """
    words = [word for word in words if word not in ("--detach", "--json", "--verify")]
    with ExitStack() as stack:
        log, descriptor = _log(out, resume, stack)
        child = _start(words, out, descriptor)
        file = _runtime_file(child) if serve and child.returncode is None else None
        code = child.poll()
        if log.parent != out and code != UsageError.exit_code and (out / "config.toml").exists():
            log = log.rename(out / LOG)
        if code:
            say(log.read_text(encoding="utf-8", errors="replace").removesuffix("\n"), sys.stderr)
            print(f"training ended with exit code {code}", file=sys.stderr)
            return code if code > 0 else 128 - code
    if as_json:
        print(json.dumps({"pid": child.pid, "run": str(out), "url": file.url if file else None}))
    else:
        say(describe_detached(child.pid, out, log, file))
    return 0


def _log(out: Path, resume: bool, stack: ExitStack) -> tuple[Path, int]:
    """Open the log, as long as the stack is: that of the run that is resumed, or a draft. Raises UsageError."""
    try:
        if resume and (out / "config.toml").exists():
            log = out / LOG
            return log, stack.enter_context(open(open_own(log, os.O_RDWR | os.O_APPEND), "rb")).fileno()
        out.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(draft_file(out))
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None


def describe_detached(pid: int, out: Path, log: Path, file: RuntimeFile | None) -> str:
    """Return what the user needs to know about a run in the background."""
    lines = [("pid", str(pid)), ("run", printable_path(out))]
    stop = f"kill {pid}"
    if file is not None:
        which = "" if _is_only(file) else f" --run {pid}"
        hint = f"{file.url}   (adaptive-rec dashboard{which} prints a link that signs in)"
        lines += [("dashboard", file.dashboard_url if on_terminal() else hint)]
        lines += [("status", f"adaptive-rec status{which} --watch")]
        stop = f"adaptive-rec stop{which}"
    lines += [("log", f"tail -f {printable_path(shlex.quote(str(log)))}")]
    lines += [("stop", f"{stop}   (ends the run after the step, with a checkpoint and a summary)")]
    return "\n".join(["training in the background", *(f"  {label:<10}  {text}" for label, text in lines)])


def _start(words: list[str], out: Path, log: int) -> subprocess.Popen[bytes]:
    """Start training; wait for its first line of metrics, not that of another process in the directory, or its end."""
    import subprocess

    from adaptive_rec.live.sidecar_process import own_modules_only

    metrics, events = out / "metrics.jsonl", out / "events.jsonl"
    metrics_before, events_before = _size(metrics), _size(events)
    command = [sys.executable, "-m", "adaptive_rec", *words, f"--out={out}"]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own_modules_only(), start_new_session=True
    )
    try:
        while child.poll() is None and not (
            (_size(metrics) > metrics_before or _is_paused(events, events_before)) and is_held_by(out, child.pid)
        ):
            time.sleep(0.05)
    except KeyboardInterrupt:
        child.terminate()
        raise
    return child


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_paused(events: Path, start_byte: int) -> bool:
    """Whether the journal reports a pause after this position, as a resumed run does that was saved while paused."""
    if not events.exists():
        return False
    with open(events, "rb") as file:
        file.seek(start_byte)
        return b'"kind": "paused"' in file.read()


def _runtime_file(child: subprocess.Popen[bytes]) -> RuntimeFile | None:
    """Return the runtime file of a run under way, or None where its sidecar could not start."""
    from adaptive_rec.live.runtime_file import under_way

    end = time.monotonic() + SIDECAR_SECONDS
    while True:
        try:
            file = next((file for file in under_way() if file.pid == child.pid), None)
        except AdaptiveRecError:
            return None  # the run's log has the reason
        if file is not None or child.poll() is not None or time.monotonic() > end:
            return file
        time.sleep(0.05)


def _is_only(file: RuntimeFile) -> bool:
    from adaptive_rec.live.runtime_file import under_way

    return all(other.pid == file.pid for other in under_way())
