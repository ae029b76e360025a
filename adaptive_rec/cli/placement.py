"""``placement``: where the rows of each table are, the rows of one table, and all facts about one row."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.cli.parser import add_client_options, add_command, on_terminal, whole_number
from adaptive_rec.errors import UsageError, did_you_mean
from adaptive_rec.units import count, percent, size, whole

MOST_ROWS = 1000
HOMES = ("memory", "disk", "unwritten")
"""Classes of cold rows where these lie on a disk."""
COLD = ("cold", *HOMES)
CLASSES = ("hot", "stale", *COLD)


def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "placement", placement, "show which rows are hot, stale or cold")
    add = parser.add_argument
    add("table", nargs="?", metavar="TABLE", help="name or index of a table, to list its rows (default: list the tables)")
    add("id", nargs="?", metavar="ID", help="a row of that table, to show all facts about it")
    add("--key", metavar="RAW_ID", help="a raw id of that table (data.ids=raw), to show the row that it reads")
    add("--class", dest="row_class", choices=CLASSES, default="hot",
        help="rows to list (default: hot, stale included); with a disk, cold ones are there (disk), were never written or, on a "
        "device, are in host memory (memory)")
    add("--limit", metavar="N", default="20", help=f"rows to list, at most {MOST_ROWS} (default: 20)")
    add("--sort", choices=("id", "estimate"), help="order (default: estimate, the most popular first; for cold rows id)")
    add_client_options(parser)


def placement(args: argparse.Namespace) -> int:
    from adaptive_rec.cli.client import connect

    limit = whole_number("--limit", args.limit, 1, MOST_ROWS)
    row_id = None if args.id is None else whole_number("ID", args.id, 0, (1 << 63) - 1)
    key = None if args.key is None else whole_number("--key", args.key, -(1 << 63), (1 << 63) - 1)
    if key is not None and (args.table is None or row_id is not None):
        raise UsageError("--key goes with a TABLE and no ID: it finds the row of a raw id")
    if args.row_class in COLD and args.sort == "estimate":
        raise UsageError("--sort estimate goes with --class hot or stale: cold rows are listed by id")
    with connect(args.run, args.url) as client:
        overview = client.get("/placement").body
        if args.table is None:
            parts: list[Any] = [table_rows(overview)]
            body = overview
        else:
            index = index_of(args.table, overview["tables"])
            if key is not None:
                body = client.get(f"/placement/{index}/keys/{key}").body
                parts = [row(body)]
            elif row_id is not None:
                body = client.get(f"/placement/{index}/rows/{row_id}").body
                parts = [row(body)]
            else:
                order = args.sort or ("id" if args.row_class in COLD else "estimate")
                query = {"class": args.row_class, "sort": order, "limit": limit}
                body = client.get(f"/placement/{index}", **query).body
                parts = rows(body, overview["tables"][index])
    if args.json:
        print_json(body)
    else:
        show(*parts)
    return 0


def index_of(named: str, known: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of a table given by name, or by index where no table has that name."""
    for table in known:
        if table["table"] == named:
            return int(table["index"])
    if named.isascii() and named.isdecimal() and int(named) < len(known):
        return int(named)
    hint = did_you_mean(named, [table["table"] for table in known])
    raise UsageError(f"TABLE must be a name or an index from 0 to {len(known) - 1}, got {named}{hint}")


def table_rows(overview: Mapping[str, Any]) -> Any:
    """Return the tables with their rows by class, and a last line for all of them. Counts are exact in pipes."""
    shown = count if on_terminal() else str
    listed = overview["tables"]
    homes = (name for name in HOMES if any(table.get(name) is not None for table in listed))
    classes = ("rows", "hot", "stale", "cold", *homes)
    cells = []
    for table in listed:
        looked_up = table["hot_lookup_ratio"]
        shares = [percent(table["hot"] / max(table["rows"], 1)), "-" if looked_up is None else percent(looked_up)]
        figures = [shown(table[key]) for key in classes]
        cells.append([table["table"], str(table["dim"]), *figures, *shares, size(table["device_bytes"])])
    sums = {key: sum(table[key] for table in listed) for key in classes}
    of_budget = f"{size(overview['device_bytes'])} of {size(overview['budget_bytes'])}"
    all_hot = percent(sums["hot"] / max(sums["rows"], 1))
    cells.append(["all", "", *(shown(value) for value in sums.values()), all_hot, "", of_budget])
    heads = ("table", "dim>", *(f"{name}>" for name in classes), "hot rows>", "hot lookups>", "device>")
    return columns(heads, cells)


def rows(page: Mapping[str, Any], table: Mapping[str, Any]) -> list[Any]:
    """Return rows of a table under a title with their number."""
    total = table[page["class"]]
    more = f"{whole(len(page['rows']))} of {whole(total)}" if page["cursor"] else whole(total)
    title = f"{page['table']}: {more} {page['class']} row{'s' * (total != 1)}"
    cells = [
        [str(r["id"]), r["class"], "-" if r["slot"] is None else str(r["slot"]), _estimate(r), _movement(r), _value(r)]
        for r in page["rows"]
    ]
    heads: tuple[str, ...] = ("id>", "class", "slot>", "estimate>", "movement>", "value")
    if all(r["value"] is None for r in page["rows"]):  # the data of the run has none
        heads, cells = heads[:-1], [cell[:-1] for cell in cells]
    return [text(title), columns(heads, cells)]


def row(about: Mapping[str, Any]) -> Any:
    """Return all facts about a row."""
    last, movement = about["last_change"], _movement(about)
    number, raw = str(about["id"]), []
    if "key" in about:
        number = number if about["own_row"] else f"shared row {number}: the id has none of its own"
        counted = f"{whole(about['counted'])} lookups remembered from when it had no row of its own"
        raw = [("id", about["key"]), *([("counted", counted)] if about["counted"] else [])]
    return pairs(
        [
            ("table", about["table"]),
            *raw,
            ("row", number),
            ("value", about["value"] or ""),
            ("class", about["class"]),
            ("slot", "" if about["slot"] is None else str(about["slot"])),
            ("estimate", f"{_estimate(about)} (lookups, counted by the sketch and decayed)"),
            ("movement", "not measured" if movement == "-" else f"{movement} (when last measured)"),
            ("why", about.get("why") or ""),
            ("changed", f"{last['from']} -> {last['to']} at step {whole(last['step'])}" if last else "not lately"),
        ]
    )


def _value(about: Mapping[str, Any]) -> str:
    """Return what an id was in the data."""
    shared = {0: "(missing values)", 1: "(rare values)"}
    return shared.get(about["id"], "") if about["value"] is None else str(about["value"])


def _estimate(about: Mapping[str, Any]) -> str:
    return "-" if about["estimate"] is None else count(about["estimate"])


def _movement(about: Mapping[str, Any]) -> str:
    return "-" if about["movement"] is None else f"{about['movement']:.3g}"
