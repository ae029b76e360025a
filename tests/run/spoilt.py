"""Mutations of the files of a run directory, and the commands that read them: `python -m tests.run.spoilt --count 2000`.

Each mutation spoils one file of a copy of a run. Then every command that reads the run is executed. It may show what is whole or
end with an error of a line; it may not hang, give a traceback, or change the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.run.spoilt_commands import FIGURES, READS, SECONDS, TRAINS, contents, execute, figures, timed, wrong_figures

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1.5, -1e308, 1e308, 2**31, 2**63, 2**64, 10**400, float("nan"), float("inf"), "", "x", "\x00",
    "\ud800", "../..", "/dev/zero", "x" * 100_000, [], [[]], [None], [1, 2], {}, {"a": 1}, {"": None}, "NaN", "2026-01-01",
    "evil:Module",
]  # fmt: skip
Spoil = Callable[[random.Random, Path], str]


# Mutations -----------------------------------------------------------------------------------------------------------


def flip(chance: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 3, 20))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)
    return "bytes changed"


def cut(chance: random.Random, path: Path) -> str:
    size = chance.randrange(path.stat().st_size)
    with open(path, "r+b") as file:
        file.truncate(size)
    return f"cut to {size} bytes"


def fill(chance: random.Random, path: Path) -> str:
    what = chance.choice(
        (
            b"",
            b"\0" * 4096,
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b"\xff\xfe" * 500,
            b"null",
            b"[]",
            b"7",
            b'"x"',
            b"a = " * 999,
        )
    )
    path.write_bytes(what)
    return f"filled with {what[:8]!r}"


def add(chance: random.Random, path: Path) -> str:
    what = chance.choice(
        (
            b"\n[[[[",
            b"\n" + b"[" * 50_000 + b"\n",
            b"\n{}\n",
            b"\nnull\n",
            b"\0" * 100,
            b"\n" + b"x" * 2_000_000,
            b"\n=1\n",
        )
    )
    with open(path, "ab") as file:
        file.write(what)
    return f"{what[:8]!r} behind it"


def lines(chance: random.Random, path: Path) -> str:
    """Lines that are missing, twice, or in another order."""
    found = path.read_bytes().splitlines(keepends=True)
    how = chance.choice(("missing", "twice", "shuffled"))
    place = chance.randrange(len(found))
    if how == "missing":
        del found[place]
    elif how == "twice":
        found.insert(place, found[chance.randrange(len(found))])
    else:
        chance.shuffle(found)
    path.write_bytes(b"".join(found))
    return f"lines {how}"


def value(chance: random.Random, path: Path) -> str:
    """One value of a JSON file, or of one of its lines, replaced; or a key removed."""
    text = path.read_text()
    each = [text] if path.suffix == ".json" else text.splitlines()
    place = chance.randrange(len(each))
    tree = json.loads(each[place])
    at, keys = tree, []
    while True:
        key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
        keys.append(key)
        if not isinstance(at[key], (dict, list)) or not at[key] or chance.random() < 0.25:
            break
        at = at[key]
    new = chance.choice(HOSTILE)
    if chance.random() < 0.15:
        del at[key]
        said = "removed"
    else:
        at[key] = new
        said = f"= {str(new)[:20]!r}"
    each[place] = json.dumps(tree)
    path.write_text("\n".join(each) + "\n")
    return f"{'.'.join(map(str, keys))} {said}"


def toml_value(chance: random.Random, path: Path) -> str:
    found = path.read_text().splitlines()
    place = chance.choice([number for number, line in enumerate(found) if " = " in line])
    name = found[place].partition(" = ")[0]
    new = chance.choice(
        (
            "nan",
            "-1",
            "1e400",
            '""',
            "[]",
            "true",
            "9" * 400,
            "{}",
            '"evil:Module"',
            '"\\u0000"',
            "[" * 3000 + "]" * 3000,
            "0",
        )
    )
    found[place] = f"{name} = {new}"
    path.write_text("\n".join(found) + "\n")
    return f"{name} = {new[:20]}"


def gone(chance: random.Random, path: Path) -> str:
    path.unlink()
    if chance.random() < 0.5:
        path.mkdir()
        return "a folder"
    return "gone"


def ways(path: Path) -> list[Spoil]:
    fitting: list[Spoil] = [flip, cut, fill, add, gone]
    if path.suffix in (".json", ".jsonl"):
        fitting += [value] * 6
    if path.suffix in (".jsonl", ".toml"):
        fitting += [lines]
    if path.suffix == ".toml":
        fitting += [toml_value] * 6
    return fitting


def spoilt_runs(whole: Path, work: Path, count: int, seed: int, first: int = 0) -> Iterator[tuple[int, Path, str, str]]:
    """Yield (number, run, file, what was done) for copies of a run with one spoilt file each."""
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size)
    for number in range(first, count):
        chance = random.Random(f"{seed}-{number}")
        run = work / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        file = chance.choice(files)
        try:
            how = chance.choice(ways(run / file))(chance, run / file)
        except (ValueError, IndexError, TypeError) as error:
            how = f"not spoilt: {error}"
        yield number, run, str(file), how


def in_turn(names: Sequence[str], number: int, some: int) -> list[str]:
    """Return the next few of some names for each number, in their order: commands that train come last."""
    return [names[place] for place in sorted(each % len(names) for each in range(number * some, (number + 1) * some))]


def faults(
    whole: Path, work: Path, count: int, seed: int, first: int = 0, names: Sequence[str] = (), some: int = 0
) -> Iterator[str]:
    """Yield what went wrong, a text each. Over each spoilt file all commands are executed, or some of them in turn."""
    names, out = names or (*READS, *TRAINS), work / "out"
    shutil.copy(whole.parent / "clicks.csv", work)
    known: dict[str, Any] = {}
    for name in FIGURES:
        if name in names:
            shutil.rmtree(work / "run", ignore_errors=True)
            shutil.copytree(whole, work / "run")
            wrong, text = execute(name, work / "run", out, seconds=3600)  # it loads torch, which may not be interrupted
            if wrong or "error:" in text:
                yield f"{name}: the whole run: {wrong or text}"
                continue
            known[name] = figures(name, out, text)
    gc.collect()
    gc.freeze()  # what there is by now is not searched after each command
    for number, run, file, how in spoilt_runs(whole, work, count, seed, first):
        before = contents(run)
        for name in in_turn(names, number, some) if some else names:
            wrong, text, took = timed(name, run, out)
            if not wrong and took > SECONDS:
                wrong = "slow"
            if not wrong and name in READS and contents(run) != before:
                wrong = "the run has changed"
            if (
                not wrong
                and name in known
                and file.startswith(("checkpoints", "rows"))
                and wrong_figures(name, out, text, known)
            ):
                wrong = "other figures"
            if wrong:
                yield f"{number} {name}: {file} {how}: {wrong} ({took:.1f} s)\n{text[-1500:]}"
        (work / "next").write_text(f"{number + 1}\n")
    gc.unfreeze()


def main_fuzz() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, help="a whole run of some checkpoints")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first mutation to make")
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--work", type=Path, required=True, help="folder for copies, and for the number of the next mutation")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",") if args.only else ()
    bad = 0
    for text in faults(args.run, args.work, args.count, args.seed, args.first, names):
        bad += 1
        print(f"## {text}", flush=True)
    print(f"{bad} went wrong, of mutations {args.first} to {args.count - 1}, seed {args.seed}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main_fuzz())
