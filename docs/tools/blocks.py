"""The fenced blocks of the documents: finding them, and running those of a page in order as a reader would.

What stands after the fence says what a block is:

    sh        commands; blocks of a page share one shell
    console   commands after "$ " with what they answered; the commands are run, what they answered is not compared
    python    a program; blocks of a page share one session
    toml, json, yaml   settings, which have to be read without an error
    text      an output, a drawing: nothing to run

A block with a title (```python title="my_policy.py") is a file: it is written under that name. A comment before a block,
`<!-- not run: why -->`, leaves it out; the reason is for readers of the source.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SHELL, PYTHON, SETTINGS, SHOWN = ("sh", "console"), ("python",), ("toml", "json", "yaml"), ("text",)
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n\n?)?"
    r"(?P<indent> *)```(?P<kind>[^\s`]*)(?: +title=\"(?P<title>[^\"]+)\")? *\n(?P<body>.*?)^(?P=indent)``` *$",
    flags=re.S | re.M,
)
MARK = "--- end of the block:"

PRELUDE = """
# Commands that go on until Ctrl-C get it after five seconds; of some, exit code 1 is an answer: it does not fit, the two differ.
adaptive-rec() {
    case "$*" in
    "serve "* | "status --watch"*) timeout --signal=INT 5 adaptive-rec "$@" || [ $? -eq 124 ] ;;
    "plan "* | *" --dry-run"* | "checkpoint diff "*) command adaptive-rec "$@" || [ $? -eq 1 ] ;;
    *) command adaptive-rec "$@" ;;
    esac
}
"""
SESSION = f"""
import sys, traceback
space = {{"__name__": "__main__"}}
for path in iter(sys.stdin.readline, ""):
    code = 0
    try:
        exec(compile(open(path.strip()).read(), path.strip(), "exec"), space)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        code = 1
    print("\\n{MARK}", code, flush=True)
"""


class BlockFailed(Exception):
    """A block ended with an error; the message has its place and its output."""


@dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    page: Path
    line: int
    kind: str
    text: str
    title: str | None = None
    reason: str | None = None
    """Why it is not run; None where it is."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.reason is None and self.kind not in SHOWN

    def commands(self) -> str:
        """What a shell is given of it: of a recorded session the commands alone."""
        if self.kind != "console":
            return self.text
        return "".join(line[2:] + "\n" for line in self.text.splitlines() if line.startswith(("$ ", "> ")))


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text, found = page.read_text(), []
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        body = "".join(line[indent:] if line.strip() else line for line in match["body"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("kind")) + 1
        found.append(Block(page, line, match["kind"], body, match["title"], match["reason"]))
    return found


def run_blocks(
    blocks: Iterable[Block],
    folder: Path,
    quiet: bool = False,
    prepare: Callable[[dict[str, str]], None] = lambda _: None,
) -> Iterator[tuple[Block, float, str]]:
    """Run blocks in a folder; yields each with its seconds and output. Raises BlockFailed at the first that ends with an error.

    `prepare` is called before the first, with the environment that they have.
    """
    with Sessions(folder, quiet) as sessions:
        prepare(sessions.environment)
        for block in blocks:
            if block.runs:
                begun = time.monotonic()
                output = sessions.run(block)
                yield block, time.monotonic() - begun, output


class Sessions:
    """A shell and a Python session in one folder, begun when first needed."""

    def __init__(self, folder: Path, quiet: bool) -> None:
        self.folder, self.quiet = folder, quiet
        self.open: dict[str, subprocess.Popen[str]] = {}
        self.runtime = Path(tempfile.mkdtemp(prefix="docs-"))
        """Where runs of these sessions are found, and no others."""
        self.environment = environment(folder, self.runtime)

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self.open.values():
            assert session.stdin is not None
            session.stdin.close()
            session.wait()
        for run in self.runtime.glob("adaptive-rec/*.json"):
            with suppress(ProcessLookupError):  # a run that a block left under way, or that its failure did
                os.kill(int(run.stem), signal.SIGTERM)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def run(self, block: Block) -> str:
        """Do what the block is for, and return what it printed."""
        if block.title:
            (self.folder / block.title).write_text(block.text)
        if block.kind in SETTINGS:
            return read_settings(block)
        if block.title:
            compile(block.text, block.title, "exec")
            return ""
        script = self.folder / f".block-{block.place.replace(':', '-')}"
        script.write_text(block.commands())
        if block.kind in SHELL:
            return self._tell("shell", f'. ./{script.name} </dev/null; printf "\\n{MARK} $?\\n"', block)
        return self._tell("python", script.name, block)

    def _tell(self, name: str, line: str, block: Block) -> str:
        session = self.open.get(name) or self._begin(name)
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(line + "\n")
        session.stdin.flush()
        said = []
        for heard in session.stdout:
            if heard.startswith(MARK):  # on a line of its own, after a line break that is not the block's
                if heard.split()[-1] == "0":
                    return "".join(said)[:-1]
                break
            said.append(heard)
            if not self.quiet:
                print(heard, end="", flush=True)
        raise BlockFailed(f"{block.place} failed:\n{block.text}\n{''.join(said)}")

    def _begin(self, name: str) -> subprocess.Popen[str]:
        command = ["bash", "-e", "-o", "pipefail"] if name == "shell" else [sys.executable, "-u", "-c", SESSION]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        session = subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes)  # type: ignore[call-overload]
        if name == "shell":
            assert session.stdin is not None
            session.stdin.write(PRELUDE)
        self.open[name] = session
        return session


def environment(folder: Path, runtime: Path) -> dict[str, str]:
    """Commands of this Python's, plots without a window, modules of the folder, runs of one's own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PATH": path, "MPLBACKEND": "agg", "PYTHONPATH": modules, "XDG_RUNTIME_DIR": str(runtime)}
    return {**os.environ, **own}


def read_settings(block: Block) -> str:
    """Raises BlockFailed where settings cannot be read."""
    try:
        if block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "json":
            json.loads(block.text)
        else:
            import yaml

            yaml.safe_load(block.text)
    except Exception as error:
        raise BlockFailed(f"{block.place} cannot be read: {error}\n{block.text}") from error
    return ""
