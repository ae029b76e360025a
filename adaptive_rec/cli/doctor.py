"""``doctor``: problems of this machine that prevent or slow down a run, and their remedies."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, print_json, show, text, waiting
from adaptive_rec.cli.parser import add_command

if TYPE_CHECKING:
    from adaptive_rec.offline.doctor import Finding


def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "doctor", doctor, "check this machine: versions, device, threads, disk, port")
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, default=Path("runs"), help="folder of the run directories (default: runs)")
    add("--port", metavar="N", type=int, help="port of the dashboard (default: 8470)")
    add("--json", action="store_true", help="print all facts and findings as JSON")


def doctor(args: argparse.Namespace) -> int:
    """Print the findings. Returns 1 where one of them prevents a run."""
    waiting("examining this machine")
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.offline.doctor import findings
    from adaptive_rec.offline.machine_facts import collect_facts

    options = ServeOptions() if args.port is None else ServeOptions(port=args.port)
    facts = collect_facts(args.out, options.port)
    found = findings(facts)
    if args.json:
        print_json({"facts": asdict(facts), "findings": [asdict(finding) for finding in found]})
    else:
        print_findings(found)
    return 1 if any(finding.level == "problem" for finding in found) else 0


def print_findings(found: list[Finding]) -> None:
    """Print a line for each finding, with its remedy."""
    show(columns(("about", "", "found", "what to do"), [(f.area, f.level, f.text, f.remedy) for f in found]))
    problems, notes = (sum(finding.level == level for finding in found) for level in ("problem", "note"))
    show(text(""), text(f"{problems} problem{'s' * (problems != 1)}, {notes} note{'s' * (notes != 1)}"))
