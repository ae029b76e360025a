"""``report``: the report of a run in one file, made again, whatever became of the run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from adaptive_rec.cli.parser import Parser


def add_commands(subparsers: Any) -> dict[str, Parser]:
    parser: Parser = subparsers.add_parser(
        "report", help="the report of a run, as one HTML file; also of one under way"
    )
    parser.set_defaults(command=report)
    parser.add_argument("directory", metavar="RUN", type=Path, help="run directory")
    parser.add_argument("--out", metavar="FILE", type=Path, help="where to write it (default: RUN/report.html)")
    return {"report": parser}


def report(args: argparse.Namespace) -> int:
    from adaptive_rec.offline.report.run_report import write_report

    print(write_report(args.directory, args.out))
    return 0
