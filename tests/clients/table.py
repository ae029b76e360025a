"""What trials found, as lines for a terminal and as tables of docs/howto/clients.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"
ORDER = ("differs", "broken without us", "refused", "equal", "no tables")
"""The verdict of a client is the worst of its optimizers'."""
Found = dict[str, Any]


def told(one: Found) -> str:
    """Return one line about one trial."""
    if "optimizer" not in one:
        return f"{one['library']}: {one['verdict']}, {one['note']}"
    return (
        f"{one['library']:<16} {one['name']:<42} {one['optimizer']:<8} {one['verdict']:<18}"
        f"{one['loss_difference']:8.1e} {one['hot_rows']:>5} hot  {one['note']}"
    )


def _clients(found: Iterable[Found]) -> list[list[Found]]:
    """Return the trials of each client that has tables."""
    tried = [one for one in found if one.get("optimizer") and one["verdict"] != "no tables"]
    return [list(group) for _, group in groupby(tried, key=lambda one: (one["library"], one["name"]))]


def _verdict(client: Sequence[Found]) -> str:
    return min((one["verdict"] for one in client), key=ORDER.index)


def _counts(clients: Sequence[Sequence[Found]]) -> str:
    verdicts = [_verdict(client) for client in clients]
    few = sum(
        verdict == "equal" and client[0]["changed_lines"] <= 5
        for client, verdict in zip(clients, verdicts, strict=True)
    )
    rest = "".join(
        f", {count} {kind}" for kind in ("refused", "broken without us", "differs") if (count := verdicts.count(kind))
    )
    return f"{few} of {len(clients)} train with equal losses{rest}"


def summary(found: Sequence[Found]) -> str:
    """Return a line for each library and one for all."""
    lines, clients = [], _clients(found)
    for library, own in groupby(clients, key=lambda client: client[0]["library"]):
        lines.append(f"{library}: {_counts(list(own))}")
    lines += [f"{one['library']}: {one['verdict']}, {one['note']}" for one in found if not one.get("optimizer")]
    return "\n".join([*lines, f"all: {_counts(clients)}"])


def clients_page(page: str, found: Sequence[Found]) -> str:
    """Return the page with the tables of these trials between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n\n" + tables(found) + "\n" + END + after


def tables(found: Sequence[Found]) -> str:
    """Return a table for each library, with counts."""
    clients, parts = _clients(found), []
    totals = [
        "| library | models | train with equal losses | refused | do not run here without us |",
        "|---|---|---|---|---|",
    ]
    for library, group in groupby(clients, key=lambda client: client[0]["library"]):
        own = list(group)
        verdicts = [_verdict(client) for client in own]
        counts = [len(own), *(verdicts.count(kind) for kind in ("equal", "refused", "broken without us"))]
        totals.append(f"| {library} | " + " | ".join(map(str, counts)) + " |")
        parts.append(f"### {library}\n\n| model | changed lines | Adagrad | Adam | note |\n|---|---|---|---|---|\n")
        parts += [_row(client) for client in own]
        parts.append("\n")
    sums = [_verdict(client) for client in clients]
    counts = [len(clients), *(sums.count(kind) for kind in ("equal", "refused", "broken without us"))]
    totals.append("| **all** | " + " | ".join(f"**{count}**" for count in counts) + " |")
    return "\n".join(totals) + "\n\n" + "".join(parts).rstrip() + "\n"


def _row(client: Sequence[Found]) -> str:
    first = client[0]
    cells = [_cell(one) for one in client] + [""] * (2 - len(client))
    lines = first["changed_lines"] if _verdict(client) == "equal" else ""
    return f"| {first['name']} | {lines} | {' | '.join(cells)} | {_note(client)} |\n"


def _cell(one: Found) -> str:
    if one["verdict"] != "equal":
        return one["verdict"]
    return f"equal at lr {one['lr']:g}" if one["smaller_lr"] else "equal"


def _note(client: Sequence[Found]) -> str:
    whole, tables = {name for one in client for name in one["whole"]}, client[0]["tables"]
    notes = []
    if whole and not any(one["lookups"] for one in client):
        notes.append(f"never looks rows up: reads {'its table' if tables == 1 else 'its tables'} whole at every step")
    elif whole:
        notes.append(f"{len(whole)} of {tables} tables read whole" if tables > 1 else "table read whole")
    notes += dict.fromkeys(one["note"] for one in client if one["note"] and one["verdict"] != "equal")
    notes += dict.fromkeys(line for one in client for line in one["left"])
    return "; ".join(notes).replace("|", "\\|")
