"""Run the blocks of pages in order, all in one folder, as a reader would: `python docs/tools/run.py docs/tutorial`.

Prints what they print, and at the end the seconds of each page. `--folder` keeps what they leave: runs, plots.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from blocks import BlockFailed, blocks_of, run_blocks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, help="pages, or folders of pages")
    parser.add_argument("--folder", type=Path, help="where to run them (default: a folder that is removed afterwards)")
    args = parser.parse_args()
    pages = [page for given in args.pages for page in (pages_of(given) if given.is_dir() else [given])]
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return run(pages, folder.resolve())


def pages_of(folder: Path) -> list[Path]:
    """The pages of a folder in the order they are read: its index, then by name."""
    return sorted(folder.glob("*.md"), key=lambda page: (page.stem != "index", page.name))


def run(pages: list[Path], folder: Path) -> int:
    seconds: dict[str, float] = {}
    for page in pages:
        begun = time.monotonic()
        print(f"=== {page}", flush=True)
        try:
            for block, took, _ in run_blocks(blocks_of(page), folder):
                print(f"--- {block.place}: {took:.1f} s", flush=True)
        except BlockFailed as error:
            print(f"FAILED {error}")
            return 1
        seconds[page.name] = time.monotonic() - begun
    print("\n" + "\n".join(f"{took:7.1f} s  {name}" for name, took in seconds.items()))
    print(f"{sum(seconds.values()):7.1f} s  in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
