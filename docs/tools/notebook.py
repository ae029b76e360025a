"""Make a notebook of a page: prose becomes Markdown cells, blocks become code cells. Outputs that the page shows are left out.

`python docs/tools/notebook.py docs/tutorial/00-films.md examples/films.ipynb` writes it; with `--execute` it is run first, in a
folder of its own, and its outputs are kept (needs nbclient and ipykernel).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from blocks import FENCE, SHELL

ROOT = Path(__file__).parents[2]
FIRST = """\
import os

if not os.path.isdir("examples"):  # opened in the folder of the examples
    os.chdir("..")
for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # the kernel asks commands for colours
    os.environ.pop(name, None)\
"""
"""The first cell: paths of the page begin at the top of the clone, and commands print plain text."""


def notebook_of(page: Path, folder: Path) -> dict[str, Any]:
    """Return the notebook of a page; links lead from `folder`, where it will lie."""
    text, cells, end = page.read_text(), [code(FIRST)], 0
    for match in FENCE.finditer(text):
        cells.append(prose(text[end : match.start()], page, folder))
        end = match.end()
        if match["kind"] in SHELL and not match["reason"]:
            cells.append(code(f"%%bash\n{match['body']}".rstrip()))
        elif match["kind"] == "python":
            cells.append(code((f"%%writefile {match['title']}\n" if match["title"] else "") + match["body"].rstrip()))
    cells.append(prose(text[end:], page, folder))
    found = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate(filter(None, cells))]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": text}


def prose(text: str, page: Path, folder: Path) -> dict[str, Any] | None:
    """Return a cell of Markdown, with links that lead from the notebook; None where there is no text."""

    def moved(link: re.Match[str]) -> str:
        path, mark, anchor = link[1].partition("#")
        return f"]({os.path.relpath((page.parent / path).resolve(), folder.resolve())}{mark}{anchor})"

    text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", moved, text.strip())
    return {"cell_type": "markdown", "metadata": {}, "source": text} if text else None


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder in which `examples` lies, and return it with its outputs. Raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(nbformat.from_dict(notebook), timeout=600, resources=where)
    found: dict[str, Any] = json.loads(nbformat.writes(client.execute()))
    for cell in found["cells"]:
        cell["metadata"].pop("execution", None)  # times
        if cell["cell_type"] == "code":
            cell["outputs"] = joined(cell["outputs"], folder)
    return found


def joined(outputs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return what a cell printed as one output, without the path of its folder, blanks at the ends of lines, and what went to
    stderr: progress."""
    printed = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
    text = "".join(line.rstrip() + "\n" for line in printed.replace(f"{folder}/", "").strip("\n").splitlines())
    stream = {"name": "stdout", "output_type": "stream", "text": text}
    return [*([stream] if text else []), *(output for output in outputs if output["output_type"] != "stream")]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a notebook of a page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--execute", action="store_true", help="run it, and keep its outputs")
    parser.add_argument("--file", type=Path, action="append", default=[], help="a file that lies in the folder where it is run")
    args = parser.parse_args()
    made = notebook_of(args.page, args.notebook.parent)
    if args.execute:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "examples").symlink_to(ROOT / "examples")
            for file in args.file:
                (Path(folder) / file.name).symlink_to(file.resolve())
            made = execute(made, Path(folder))
    args.notebook.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
