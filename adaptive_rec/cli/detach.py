"""``train --detach``: the same command in a session of its own, until it is up."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.parser import on_terminal
from adaptive_rec.errors import AdaptiveRecError, UsageError

if TYPE_CHECKING:
    import subprocess

    from adaptive_rec.live.runtime_file import RuntimeFile

SIDECAR_SECONDS = 5.0
"""The sidecar starts before the first step; training that is up without it for so long goes on without."""


def detach(words: list[str], out: Path, resume: bool, serve: bool, as_json: bool) -> int:
    """Start the same command in a session of its own. Returns once it trains, or when it ended, with its exit code.

    The child makes the run directory. Its log begins beside that and is moved in when it is there.
    """
    config, log = out / "config.toml", out / "log.txt"
    going_on = config.exists()
    draft = log if going_on and resume else out.with_name(f".{out.name}.log")
    child = _start([word for word in words if word not in ("--detach", "--json")], out, draft)
    file = _runtime_file(child) if serve and child.returncode is None else None
    code = child.poll()
    if not going_on and config.exists():
        draft = draft.rename(log)
    if code:
        print(draft.read_text(encoding="utf-8", errors="replace"), end="", file=sys.stderr)
        print(f"training ended with exit code {code}", file=sys.stderr)
        if draft != log:
            draft.unlink()
        return code if code > 0 else 128 - code
    if as_json:
        print(json.dumps({"pid": child.pid, "run": str(out), "url": file.url if file else None}))
    else:
        print(told(child.pid, out, log, file))
    return 0


def told(pid: int, out: Path, log: Path, file: RuntimeFile | None) -> str:
    """What a person needs to know of a run in the background."""
    lines = [("pid", str(pid)), ("run", str(out))]
    if file is not None:
        which = "" if _is_only(file) else f" --run {pid}"
        if on_terminal():
            lines += [("dashboard", file.dashboard_url)]
        else:
            lines += [("dashboard", f"{file.url}   (adaptive-rec dashboard{which} prints the link with its token)")]
        lines += [("status", f"adaptive-rec status{which} --watch")]
    stop = f"adaptive-rec stop{which}" if file is not None else f"kill {pid}"
    lines += [("log", f"tail -f {shlex.quote(str(log))}")]
    lines += [("stop", f"{stop}   (ends after the step, with a checkpoint and a summary)")]
    return "\n".join(["training in the background", *(f"  {label:<10}  {text}" for label, text in lines)])


def _start(words: list[str], out: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start training; wait for its first line of metrics or its end."""
    import subprocess

    from adaptive_rec.live.sidecar import own_modules_only

    metrics = out / "metrics.jsonl"
    size_before = metrics.stat().st_size if metrics.exists() else 0
    events = out / "events.jsonl"
    events_before = events.stat().st_size if events.exists() else 0
    command = [sys.executable, "-m", "adaptive_rec", *words, f"--out={out}"]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as stream:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=own_modules_only(),
                start_new_session=True,
            )
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
    try:
        while child.poll() is None and not (metrics.exists() and metrics.stat().st_size > size_before):
            if _waits(out / "events.jsonl", events_before):
                break
            time.sleep(0.05)
    except KeyboardInterrupt:
        child.terminate()
        raise
    return child


def _waits(events: Path, start_byte: int) -> bool:
    """Whether the run has said since then that it is paused: it was so when it was saved."""
    if not events.exists():
        return False
    with open(events, "rb") as file:
        file.seek(start_byte)
        return b'"kind": "paused"' in file.read()


def _runtime_file(child: subprocess.Popen[bytes]) -> RuntimeFile | None:
    """The runtime file of a run that trains, or None where it has none because its sidecar could not start."""
    from adaptive_rec.live.runtime_file import under_way

    end = time.monotonic() + SIDECAR_SECONDS
    while True:
        try:
            file = next((file for file in under_way() if file.pid == child.pid), None)
        except AdaptiveRecError:
            return None  # as the run's log says, too
        if file is not None or child.poll() is not None or time.monotonic() > end:
            return file
        time.sleep(0.05)


def _is_only(file: RuntimeFile) -> bool:
    from adaptive_rec.live.runtime_file import under_way

    return all(other.pid == file.pid for other in under_way())
