"""Shared by `plan`, `profile` and `simulate`: ``--processes``, homes of rows, and how results are printed and written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.launcher import MOST_PROCESSES
from adaptive_rec.cli.output import columns, pairs, print_json, printable_path, say, show, text
from adaptive_rec.cli.parser import Parser, create_folder, whole_number
from adaptive_rec.errors import UsageError
from adaptive_rec.units import count, parse_rate, size, whole

if TYPE_CHECKING:
    from adaptive_rec.offline.forecast.homes import Homes
    from adaptive_rec.offline.forecast.ranks import Processes


def add_forecast_options(parser: Parser) -> None:
    add = parser.add_argument
    add("--processes", metavar="N", help="what 1, 2, 4 ... N processes would send and hold, or those of a list A,B,C")
    add("--nodes", metavar="M", default="1", help="with --processes: the machines that the largest number runs on")
    add("--network", metavar="RATE", help="with --nodes: the network of each machine (25Gbit/s)")


def processes_of(args: argparse.Namespace) -> Processes | None:
    """Return what the command line asks for. Raises UsageError where its options do not fit together."""
    if args.processes is None:
        for option, given in (("--nodes", args.nodes != "1"), ("--network", args.network is not None)):
            if given:
                raise UsageError(f"{option} needs --processes N, which is not given")
        return None
    numbers = _numbers(args.processes)
    most, nodes = numbers[-1], whole_number("--nodes", args.nodes, 1, MOST_PROCESSES)
    if most % nodes:
        raise UsageError(f"--nodes must divide the {whole(most)} processes evenly, got {nodes}")
    if (nodes > 1) != (args.network is not None):
        given = f"--network {args.network}" if args.network else "no --network"
        raise UsageError(f"--network must be given where --nodes is 2 or more, and only there, got --nodes {nodes} and {given}")
    from adaptive_rec.offline.forecast.ranks import Processes

    return Processes(numbers, most // nodes, _rate(args.network) if args.network else 0.0)


def _numbers(typed: str) -> list[int]:
    """Return 1, 2, 4 ... N for a number N, or the numbers of a list, rising."""
    numbers = sorted({whole_number("--processes", part.strip(), 1, MOST_PROCESSES) for part in typed.split(",")})
    if "," in typed:
        return numbers
    doubled = [1 << power for power in range(numbers[0].bit_length())]
    return sorted({*doubled, numbers[0]})


def _rate(typed: str) -> float:
    try:
        return parse_rate(typed)
    except ValueError:
        raise UsageError(f"--network must be a rate above 0 such as 25Gbit/s, got {typed}") from None


# What is printed -----------------------------------------------------------------------------------------------------


def answer(
    args: argparse.Namespace, name: str, values: Mapping[str, Any], summary: Callable[[Mapping[str, Any]], list[Any]],
    page: Callable[[Mapping[str, Any]], str], data_is_named: bool,
) -> None:  # fmt: skip
    """Print results as tables or as JSON. With --out, write ``NAME.json`` and ``NAME.html`` there before. `data_is_named`:
    whether a line above names the data, which was prepared. Raises UsageError where the folder cannot be written."""
    if args.out is not None:
        from adaptive_rec.offline.pages.page import write_page

        create_folder(args.out)
        write_page(json.dumps(values, indent=1, allow_nan=False) + "\n", args.out / f"{name}.json")
        write_page(page(values), args.out / f"{name}.html")
    if args.json:
        print_json(values)
        return
    show(*summary({**values, "data": {**values["data"], "source": ""}} if data_is_named else values))
    if args.out is not None:
        say(f"\n{printable_path(args.out / f'{name}.html')}")


def is_other_data(args: argparse.Namespace, given: argparse.Namespace) -> bool:
    """Whether the data is a folder that was prepared from the given files, which is said when it is done."""
    from adaptive_rec.data.prepare.place import is_prepared

    return str(args.data) != str(given.data) and is_prepared(str(args.data))


def shown_forecast(made: Mapping[str, Any]) -> list[Any]:
    """Return the table of a forecast, and what limits it."""
    heads = ("ranks", "nodes", "memory", "requests", "rows", "gradients", "dense", "to nodes", "network")
    timed = ("step", "samples/s") if made["numbers"][0]["step_seconds"] is not None else ()
    return [
        text("several processes: bytes that a rank sends for each sample of its part, and milliseconds of a step"),
        columns([f"{head}>" for head in (*heads, *timed)], list(_lines(made["numbers"]))),
        pairs([("batch", _counted(made)), ("limit", made["limit"])]),
    ]


def _counted(made: Mapping[str, Any]) -> str:
    return f"{whole(made['batch_size'])} samples, shared by all ranks; memory is that of a rank's rows and dense part"


def _lines(numbers: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for one in numbers:
        sent = one["sent_bytes_per_sample"]
        kinds = [whole(sent[kind]) for kind in ("requests", "rows", "gradients", "dense", "outside")]
        step = one["step_seconds"]
        timed = [] if step is None else [f"{1000 * step:.1f}", whole(one["samples_per_second"])]
        counts = [whole(one["processes"]), whole(one["nodes"]), size(one["rank_bytes"])]
        network = sum(one["network_seconds"].values())
        yield [*counts, *kinds, f"{1000 * network:.1f}", *timed]


def shown_homes(homes: Homes) -> Iterator[tuple[str, str]]:
    """Yield where rows are, what a step asks of the disk, and whether that keeps up."""
    in_memory = f"{count(homes.memory_rows)} rows in memory ({size(homes.memory_bytes)})"
    if homes.device_rows:
        in_memory = f"{count(homes.device_rows)} rows on the device ({size(homes.device_bytes)}), {in_memory}"
    yield "homes", f"{in_memory}, {count(homes.disk_rows)} on the disk once written ({size(homes.disk_bytes)})"
    if homes.cold_rows_per_step is None:
        return
    per_step = f"{count(round(homes.cold_rows_per_step))} a step, read from the disk at the most and written back"
    yield ("disk rows" if homes.device_rows else "cold rows"), per_step
    disk, step = homes.disk_seconds, homes.step_seconds
    if homes.device_rows:
        yield "disk", "its time is predicted for runs on a CPU only"
    elif disk is None or step is None:
        yield "disk", "not measured: adaptive-rec calibrate --out FILE does, then give --hardware FILE"
    else:
        took = f"{1000 * disk:.1f} ms a step beside {1000 * step:.1f} ms for all else, {1 / max(step, disk):.1f} steps/s"
        short = "does not keep up once all of these come from files: give more run.host_memory, or a faster disk"
        keeps = "keeps up" if homes.keeps_up else short
        yield "disk", f"{took}: {keeps}"
