"""Every fenced block of the documents is of a known kind, is valid, and runs.

`make test` checks what takes seconds: settings are read, commands are parsed by the real parser, programs are compiled.
`make check` runs the blocks, page by page, each page in its own folder; `make check-long` runs the whole tutorial too. A block
that cannot run says why.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest

from adaptive_rec.errors import UsageError
from tests.docs import page_files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from blocks import (  # noqa: E402
    PYTHON,
    SETTINGS,
    SHELL,
    SHOWN,
    Block,
    BlockFailed,
    blocks_of,
    pages_of,
    read_settings,
    run_blocks,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
TUTORIAL = ROOT / "docs" / "tutorial"
RUNNING = [
    page
    for page in PAGES
    if (page.parent != TUTORIAL or page.stem == "00-films") and any(b.runs and b.kind not in SETTINGS for b in blocks_of(page))
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_fence_is_found_and_of_a_known_kind() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text(), flags=re.M)
        assert len(fences) == 2 * len(blocks_of(page)), f"{page}: a fence that is not closed, or is not understood"
    unknown = [
        f"{block.place} ({block.kind or 'no kind'})"
        for block in BLOCKS
        if block.kind not in SHELL + PYTHON + SETTINGS + SHOWN
    ]
    assert unknown == []


def test_blocks_that_do_not_run_have_a_reason_and_are_few() -> None:
    left_out = [block for block in BLOCKS if block.reason is not None]
    assert [block.place for block in left_out if len(block.reason or "") < 10 or block.kind in SHOWN] == []
    runnable = [block for block in BLOCKS if block.kind not in SHOWN]
    assert len(left_out) <= 0.15 * len(runnable), [block.place for block in left_out]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in SETTINGS], ids=lambda block: block.place)
def test_settings_can_be_read(block: Block) -> None:
    if block.kind == "yaml":
        pytest.importorskip("yaml", reason="PyYAML comes with mkdocs, which is not installed")
    read_settings(block)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in PYTHON], ids=lambda block: block.place)
def test_programs_compile(block: Block) -> None:
    ast.parse(block.text, block.place)


def test_commands_have_the_options_that_the_documents_give_them() -> None:
    """Blocks that do not run are checked too: a renamed command is found without running anything."""
    from adaptive_rec.cli import parse

    wrong, found = [], 0
    for block in BLOCKS:
        for arguments in commands_of(block):
            found += 1
            try:
                parse(arguments)
            except UsageError as error:
                wrong.append(f"{block.place}: adaptive-rec {shlex.join(arguments)}: {error}")
            except SystemExit:
                pass  # --help
    assert wrong == []
    assert found > 80


def commands_of(block: Block) -> list[list[str]]:
    """The arguments of the adaptive-rec commands in a shell block, as they are written there."""
    if block.kind not in SHELL:
        return []
    commands = []
    for line in block.commands().replace("\\\n", " ").splitlines():
        line = re.sub(r'"([^"$]*)"', lambda quoted: quoted[1].replace(" ", ""), line)  # one word each, as for a shell
        for part in re.split(r"\$\(|\)|[|;{}]|&&|\|\|", re.sub(r"'[^']*'", "''", line.partition(" #")[0])):
            words = re.sub(r"[<>].*", "", part).split()
            if words[:1] == ["adaptive-rec"]:
                commands.append(words[1:])
    return commands


# Run in make check, and the tutorial in make check-long --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    for program in ("curl", "jq"):
        if re.search(rf"\b{program} ", "".join(block.commands() for block in blocks_of(page) if block.kind in SHELL)):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed")
    if "127.0.0.1:8470" in text and taken(8470):
        pytest.skip("port 8470, which the page names, is in use on this machine")
    run_pages([page], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_tutorial_runs_in_under_twenty_minutes(tmp_path: Path) -> None:
    """Chapter 0 is counted apart."""
    pytest.importorskip("matplotlib", reason="the tutorial's plots take matplotlib (pip install 'adaptive-rec[docs]')")
    pages = pages_of(TUTORIAL)
    first = next(page for page in pages if page.stem == "00-films")
    assert run_pages([page for page in pages if page != first], tmp_path) < 1200
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name for path in (TUTORIAL / "images").glob("*.svg")}


def run_pages(pages: list[Path], folder: Path) -> float:
    """Run all blocks; returns their seconds."""
    seconds = 0.0
    for page in pages:
        for _, took, _ in run_blocks(
            blocks_of(page), folder, True, lambda found, page=page: page_files.prepare(page, folder, found)
        ):  # type: ignore[misc]
            seconds += took
    return seconds


def taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# The runner notices errors -------------------------------------------------------------------------------------------


def test_a_failing_block_is_reported_with_its_place_and_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nX=3\n```\n\n```console\n$ echo said $X\nsaid 4\n```\n\n```python\ny = 1\n```\n\n"
        "<!-- not run: of another machine -->\n```sh\nexit 9\n```\n\n```python\nprint('so', y)\n1 / 0\n```\n"
    )
    outputs: list[str] = []
    with pytest.raises(BlockFailed, match=r"page.md:19 failed(.|\n)*so 1(.|\n)*ZeroDivisionError"):
        outputs.extend(output for _, _, output in run_blocks(blocks_of(page), tmp_path, quiet=True))
    assert outputs == ["", "said 3\n", ""]
    page.write_text("```sh\nprintf 'no line break'\n```\n\n```python\nprint(3, end='')\n```\n")
    assert [output for _, _, output in run_blocks(blocks_of(page), tmp_path, quiet=True)] == ["no line break", "3"]
    page.write_text("```sh\necho first\nfalse\necho never printed\n```\n")
    with pytest.raises(BlockFailed, match=r"first\n$"):
        list(run_blocks(blocks_of(page), tmp_path, quiet=True))
