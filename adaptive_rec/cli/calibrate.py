"""``calibrate``: the costs of work on this machine, from which `simulate` predicts the time of steps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from adaptive_rec.cli.output import columns, pairs, print_json, printable_path, say, show, text, waiting
from adaptive_rec.cli.parser import add_command, add_settings, check_out_file, configuration
from adaptive_rec.cli.signals import ended_at_once
from adaptive_rec.errors import UsageError

EXAMPLES = """\
examples:
  adaptive-rec calibrate --out here.toml                 the dense part of criteo_sample, rows of several dims
  adaptive-rec calibrate my.toml --out here.toml         the dense part of a configuration
"""


def add_commands(subparsers: Any) -> None:
    purpose = "measure the costs of work on this machine, for simulate and plan"
    parser = add_command(subparsers, "calibrate", calibrate, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    measured = "preset or TOML file whose steps to measure (default: criteo_sample)"
    add("config", nargs="?", metavar="CONFIG", default="criteo_sample", help=measured)
    add_settings(parser)
    add("--json", action="store_true", help="print the profile as JSON")
    add("--out", metavar="FILE", type=Path, help="write the profile there (TOML), for simulate --hardware")


def calibrate(args: argparse.Namespace) -> int:
    """Measure, print and write the profile."""
    config = configuration(args.config, None, args.set)
    if args.out is not None:
        check_out_file(args.out)
    waiting(f"preparing the steps of {args.config}")
    from adaptive_rec.cli.progress import progress_shown
    from adaptive_rec.offline.forecast.calibrate import calibrated
    from adaptive_rec.offline.forecast.hardware import to_text

    with progress_shown() as progress, ended_at_once():
        hardware = calibrated(config, args.config, progress)
    if args.out is not None:
        try:
            args.out.write_text(to_text(hardware), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {args.out} cannot be written: {error.strerror}") from None
    if args.json:
        print_json(hardware.described())
    else:
        show(*hardware_tables(hardware.described()))
        if args.out is not None:
            say(f"\n{printable_path(args.out)}")
    return 0


NO_ROOM = "not measured: it has no room"


def hardware_tables(found: dict[str, Any]) -> list[Any]:
    """Return the profile as tables: costs of a step, then costs of rows by dim."""
    from adaptive_rec.offline.forecast.hardware import DenseCosts, DiskCosts, LinkCosts, RowCosts, StepCosts

    facts = [("machine", found["name"]), ("cores", str(found["cores"])), ("memory", f"{found['memory_gbs']:.1f} GB/s")]
    facts += [("dense part", found["dense"]["config"]), ("disk", found["disk"]["folder"] or NO_ROOM)]
    listed: list[list[str]] = []
    sections: dict[str, Any] = {"dense": DenseCosts, "step": StepCosts, "link": LinkCosts, "disk": DiskCosts}
    left_out = {name for name, known in (("link", found["on_device"]), ("disk", found["disk"]["read_us"])) if not known}
    for name, kind in sections.items():
        for key, field in kind.model_fields.items():
            unit = field.json_schema_extra["unit"]
            if unit != "text" and name not in left_out:
                listed.append([f"{name}.{key}", f"{found[name][key]:.4g}", unit, field.description])
    costs = [name for name in RowCosts.model_fields if name != "dim"]
    by_dim = [[str(rows["dim"]), *(f"{rows[name]:.3g}" for name in costs)] for rows in found["rows"]]
    heads = ("dim>", *(f"{name.removesuffix('_ns').replace('_', ' ')}>" for name in costs))
    blank = text("")
    table = columns(("figure", "value>", "unit", ""), listed)
    return [pairs(facts), blank, table, blank, text("rows, ns a lookup (gather, sum) or a row"), columns(heads, by_dim)]
