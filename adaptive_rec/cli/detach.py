"""``train --detach``: training in the background, in a session of its own."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import printable_path, say
from adaptive_rec.cli.parser import on_terminal
from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.run.new_directory import is_held_by
from adaptive_rec.system.drafts import draft_file
from adaptive_rec.system.own_files import open_own
from adaptive_rec.units import printable

if TYPE_CHECKING:
    import subprocess

    from adaptive_rec.config.tree import Config
    from adaptive_rec.live.runtime_file import RuntimeFile

LOG = "log.txt"
SIDECAR_SECONDS = 5.0
"""Time that training may be under way without a sidecar, which starts before the first step."""


def detach(words: list[str], out: Path, config: Config, resume: bool, serve: bool, as_json: bool) -> int:
    """Start the same command in a session of its own. Returns once it trains, or has ended, then with its exit code.

    With --verify the data was verified before, so the child does not do it again. The child creates the run directory. Its log
    is a draft next to that directory and is moved into it later: not that of a start that was refused, as another one may have
    made the directory.
    """
    words = [word for word in words if word not in ("--detach", "--json", "--verify")]
    files = [out / "metrics.jsonl", out / "events.jsonl"]
    before = [_size(file) for file in files]
    with ExitStack() as stack:
        log, descriptor = _log(out, resume, stack)
        child = _start(words, out, descriptor, before, config.data.follow)
        file = _runtime_file(child, out) if serve and child.returncode is None else None
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
        reports, events = map(_lines_from, files, before)
        say(describe_detached(child.pid, out, log, file, _length(config, reports, events)))
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


def describe_detached(pid: int, out: Path, log: Path, file: RuntimeFile | None, length: str) -> str:
    """Return what the user needs to know about a run in the background. `length`: how many steps there are, where that is not
    simply what was asked for."""
    lines = [("pid", str(pid)), ("run", printable_path(out)), *([("length", printable(length))] if length else [])]
    stop = f"kill {pid}"
    if file is not None:
        which = "" if _is_only(file) else f" --run {file.pid}"
        hint = f"{file.url}   (adaptive-rec dashboard{which} prints a link that signs in)"
        lines += [("dashboard", file.dashboard_url if on_terminal() else hint)]
        lines += [("status", f"adaptive-rec status{which} --watch")]
        stop = f"adaptive-rec stop{which}"
    lines += [("log", f"tail -f {printable_path(shlex.quote(str(log)))}")]
    lines += [("stop", f"{stop}   (ends the run after the step, with a checkpoint and a summary)")]
    return "\n".join(["training in the background", *(f"  {label:<10}  {text}" for label, text in lines)])


def _length(config: Config, reports: list[dict[str, Any]], events: list[dict[str, Any]]) -> str:
    """Return how long a run that has started will train, as its own first lines say it. A resumed run that waits at once has no
    report yet; its length is not known then."""
    from adaptive_rec.cli.run_text import length_in_words

    done = next((event["step"] for event in events if event.get("kind") == "started"), 0)
    total = next((report["steps_total"] for report in reports if "steps_total" in report), None)
    return length_in_words(config, done, total or done) if config.data.follow or total is not None else ""


def _start(words: list[str], out: Path, log: int, before: list[int], follow: bool) -> subprocess.Popen[bytes]:
    """Start training; wait for its first line of metrics, not that of another process in the directory, or its end. Data that is
    followed may bring none for hours, and a run that was saved while paused has none: their journals say that they began."""
    import subprocess

    from adaptive_rec.live.sidecar_process import own_modules_only

    (metrics_before, events_before), begun = before, "started" if follow else "paused"
    metrics, events = out / "metrics.jsonl", out / "events.jsonl"
    command = [sys.executable, "-m", "adaptive_rec", *words]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own_modules_only(), start_new_session=True
    )
    try:
        while child.poll() is None and not (
            (_size(metrics) > metrics_before or _has(events, events_before, begun)) and is_held_by(out, child.pid)
        ):
            time.sleep(0.05)
    except KeyboardInterrupt:
        child.terminate()
        raise
    return child


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lines_from(path: Path, start_byte: int) -> list[dict[str, Any]]:
    """Return the whole lines of JSON after a position."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(start_byte)
        return [json.loads(line) for line in file if line.endswith(b"\n") and line.strip()]


def _has(events: Path, start_byte: int, kind: str) -> bool:
    """Whether the journal has an event of a kind after a position."""
    return any(event.get("kind") == kind for event in _lines_from(events, start_byte))


def _runtime_file(child: subprocess.Popen[bytes], out: Path) -> RuntimeFile | None:
    """Return the runtime file of a run under way, which names rank 0 where `child` has started several processes, or None where
    its sidecar could not start."""
    from adaptive_rec.live.runtime_file import under_way

    end, run = time.monotonic() + SIDECAR_SECONDS, os.path.realpath(out)
    while True:
        try:
            file = next((file for file in under_way() if os.path.realpath(file.run) == run), None)
        except AdaptiveRecError:
            return None  # the run's log has the reason
        if file is not None or child.poll() is not None or time.monotonic() > end:
            return file
        time.sleep(0.05)


def _is_only(file: RuntimeFile) -> bool:
    from adaptive_rec.live.runtime_file import under_way

    return all(other.pid == file.pid for other in under_way())
