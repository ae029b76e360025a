"""Find the fenced blocks of the documents, and run those of a page in order, as a reader would.

The word after the fence is the kind of a block:

    sh        commands; the blocks of a page share one shell
    console   commands after "$ " with their output; the commands are run, the output is not compared
    python    a program; the blocks of a page share one session
    toml, json, yaml   settings, which must be readable
    text      an output or a drawing: nothing to run
    diff      a change of a program, whose two sides a test runs

A block with a title (```python title="my_policy.py") is a file: it is written under that name. A comment before a block,
`<!-- not run: why -->`, leaves it out.

`python docs/tools/blocks.py docs/tutorial` runs pages, or folders of pages, all in one folder. `--folder` keeps what they
write: runs, plots.
"""

from __future__ import annotations

import argparse
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

SHELL, PYTHON, SETTINGS, SHOWN = ("sh", "console"), ("python",), ("toml", "json", "yaml"), ("text", "diff")
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n\n?)?"
    r"(?P<indent> *)```(?P<kind>[^\s`]*)(?: +title=\"(?P<title>[^\"]+)\")? *\n(?P<body>.*?)^(?P=indent)``` *$",
    flags=re.S | re.M,
)
MARK = "--- end of the block:"

PRELUDE = """
# Commands that run until Ctrl-C get it after five seconds. Exit code 1 of some is a result: it does not fit, the two differ.
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
    """A block ended with an error; the message contains its place and its output."""


@dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    page: Path
    line: int
    kind: str
    text: str
    title: str | None = None
    reason: str | None = None
    """Why it is not run, or None."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.reason is None and self.kind not in SHOWN

    def commands(self) -> str:
        """The text for a shell: of a recorded session only the commands."""
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
    """Run blocks in a folder; yield each with its seconds and output. Raises BlockFailed at the first error.

    `prepare` is called before the first block, with the environment of the blocks.
    """
    with Sessions(folder, quiet) as sessions:
        prepare(sessions.environment)
        for block in blocks:
            if block.runs:
                started = time.monotonic()
                output = sessions.run(block)
                yield block, time.monotonic() - started, output


class Sessions:
    """A shell and a Python session in one folder, started when first needed."""

    def __init__(self, folder: Path, quiet: bool) -> None:
        self.folder, self.quiet = folder, quiet
        self.open: dict[str, subprocess.Popen[str]] = {}
        self.runtime = Path(tempfile.mkdtemp(prefix="docs-"))
        """The folder in which only the runs of these sessions are found."""
        self.environment = environment(folder, self.runtime)

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self.open.values():
            assert session.stdin is not None
            session.stdin.close()
            session.wait()
        for run in self.runtime.glob("adaptive-rec/*.json"):
            with suppress(ProcessLookupError):  # a run that a block, or its failure, left running
                os.kill(int(run.stem), signal.SIGTERM)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def run(self, block: Block) -> str:
        """Run, read or write the block, and return what it printed."""
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
            return self._execute("shell", f'. ./{script.name} </dev/null; printf "\\n{MARK} $?\\n"', block)
        return self._execute("python", script.name, block)

    def _execute(self, name: str, line: str, block: Block) -> str:
        session = self.open.get(name) or self._start(name)
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(line + "\n")
        session.stdin.flush()
        output = []
        for answer in session.stdout:
            if answer.startswith(MARK):  # on a line of its own, after a line break that is not the block's
                if answer.split()[-1] == "0":
                    return "".join(output)[:-1]
                break
            output.append(answer)
            if not self.quiet:
                print(answer, end="", flush=True)
        raise BlockFailed(f"{block.place} failed:\n{block.text}\n{''.join(output)}")

    def _start(self, name: str) -> subprocess.Popen[str]:
        command = ["bash", "-e", "-o", "pipefail"] if name == "shell" else [sys.executable, "-u", "-c", SESSION]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        session = subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **pipes)  # type: ignore[call-overload]
        if name == "shell":
            assert session.stdin is not None
            session.stdin.write(PRELUDE)
        self.open[name] = session
        return session


def environment(folder: Path, runtime: Path) -> dict[str, str]:
    """Commands of this Python, plots without a window, modules of the folder, runs apart from the user's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PATH": path, "MPLBACKEND": "agg", "PYTHONPATH": modules, "XDG_RUNTIME_DIR": str(runtime)}
    return {**os.environ, **own}


def read_settings(block: Block) -> str:
    """Check that settings can be read. Raises BlockFailed."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the blocks of pages in order, all in one folder.")
    parser.add_argument("pages", nargs="+", type=Path, help="pages, or folders of pages")
    parser.add_argument("--folder", type=Path, help="where to run them (default: a folder that is removed afterwards)")
    args = parser.parse_args()
    pages = [page for path in args.pages for page in (pages_of(path) if path.is_dir() else [path])]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for page in pages:
                for block, took, _ in run_blocks(blocks_of(page), folder):
                    print(f"--- {page} {block.place}: {took:.1f} s", flush=True)
        except BlockFailed as error:
            print(f"FAILED {error}")
            return 1
    print(f"{time.monotonic() - started:.1f} s in all")
    return 0


def pages_of(folder: Path) -> list[Path]:
    """The pages of a folder in reading order: its index, then by name."""
    return sorted(folder.glob("*.md"), key=lambda page: (page.stem != "index", page.name))


if __name__ == "__main__":
    raise SystemExit(main())
