"""The commands `train` and `predict` carried out in a program that goes on after them, and what is hot in a run's tables."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.cli.frames import AddedColumn, Frame, write_frame
from adaptive_rec.errors import AdaptiveRecError, ConflictError, TrainingError
from adaptive_rec.run.new_directory import named_directory, new_directory
from adaptive_rec.system.drafts import draft_file, make_shared_folder
from adaptive_rec.system.host_memory import give_back_freed_memory

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config

ONE_AT_A_TIME = threading.RLock()
"""Held by the thread that trains or scores: torch's threads, and what may be imported, are settings of the process."""
SHOWN_ROWS = 10
OPTION = re.compile(r"(?<![\w-])--(label|schema|time|weight|group|policy|seed|device|patience|out|data)\b([ =](?=[A-Z0-9'\"]))?")
"""An option of a command that is a parameter of `ClickModel` too, and whether a value follows."""
_used_by: list[int] = []
"""The process that has trained or scored first, if any."""


def begin_use() -> None:
    """Set what a process needs before torch and Numba are loaded. Raises ConflictError in a process that was forked from one that
    has used them: OpenMP's threads do not survive a fork, and the first loop in parallel would end or stop it."""
    from adaptive_rec.system.libraries import ignore_file
    from adaptive_rec.system.limits import check_libraries, save_address_space
    from adaptive_rec.system.openmp import wait_briefly

    if _used_by and os.getpid() not in _used_by:
        raise ConflictError(
            f"ClickModel must not be used in a process ({os.getpid()}) that was forked from one that has used it "
            f"({_used_by[0]}); start processes by spawn, or take joblib's backend loky"
        )
    if not _used_by:
        _used_by.append(os.getpid())
        if "torch" not in sys.modules:
            wait_briefly(os.environ)
        if warning := ignore_file():
            warnings.warn(warning, stacklevel=4)
        save_address_space(os.environ)
        check_libraries()


def options_as_words(values: Mapping[str, Any]) -> list[str]:
    """Return options of a command line, without those whose value is None."""
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


# Training ------------------------------------------------------------------------------------------------------------


@contextmanager
def frame_in_file(frame: Frame, runs: Path, added: Mapping[str, AddedColumn]) -> Iterator[Path]:
    """Write a frame to a file in `runs`, named by its content, for the body alone: of several processes with the same rows one is
    in the body at a time, so that they are prepared once. `kept` has the file stay."""
    from adaptive_rec.data.prepare.job import as_user_errors, only_one

    folder = runs / "data"
    with as_user_errors(folder):
        make_shared_folder(folder)
        with draft_file(folder / "frame.parquet") as (draft, _):
            digest = write_frame(frame, draft, added)
            give_back_freed_memory()
            place = folder / f"frame-{digest}.rows"
            with only_one(place, on_wait=lambda: None):
                path = place / f"frame-{digest}.parquet"
                draft.replace(path)
                try:
                    yield path
                finally:
                    if not (place / KEPT).exists():
                        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def named_as_arguments() -> Iterator[dict[str, str]]:
    """Have errors name the arguments of `ClickModel` in place of the options of commands. The dictionary takes further texts,
    such as the path of a frame's file, each with what the user calls it."""
    names: dict[str, str] = {}
    try:
        yield names
    except AdaptiveRecError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (as_argument_names(error.args[0], names), *error.args[1:])
        raise


def as_argument_names(text: str, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a text of a command with the names of arguments. `names`: further ones by what they are in the text."""
    for found, name in sorted(names.items(), key=lambda item: -len(item[0])):
        text = text.replace(found, name)
    return OPTION.sub(lambda match: f"{match[1]}=" if match[2] else match[1], text)


KEPT = "kept"


def keep_file(path: Path) -> None:
    """Have the file of `frame_in_file` stay: a run reads it."""
    (path.parent / KEPT).touch()


def prepared_for(words: list[str], runs: Path, verbose: bool) -> tuple[Namespace, Config]:
    """Return the command line `train WORDS` and its configuration, once its data is prepared in `runs`."""
    from adaptive_rec.cli import parse
    from adaptive_rec.cli.own_data import with_prepared_data
    from adaptive_rec.cli.train_settings import check_begins, load_checked

    args = parse(["train", *words])
    load_checked(args)
    output: TextIO = sys.stdout if verbose else io.StringIO()
    args, config = with_prepared_data(args, check_begins, runs, output)
    if isinstance(output, io.StringIO):
        for line in output.getvalue().splitlines():
            if line.startswith("note: "):
                warnings.warn(as_argument_names(line.removeprefix("note: ")), stacklevel=4)
    return args, config


def train_run(args: Namespace, config: Config, runs: Path, out: Path | None, verbose: bool) -> tuple[Path, BaseException | None]:
    """Train as the command does, in `out` or a new directory in `runs`. Returns the directory, and how training was ended before
    its end: KeyboardInterrupt, or the error that prevented the last checkpoint or the score."""
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.cli.train import Serving, train_elsewhere, training_here
    from adaptive_rec.live.telemetry import Event

    serving = Serving.of(args)
    with whole_directory(out, runs / named_directory(config.knobs.policy).name) as place:
        from adaptive_rec.cli.launcher import Wanted

        train_elsewhere(args, config, Wanted(1, 0), place, serving)
        screen = Screen(stream=sys.stdout if verbose else io.StringIO())
        with training_here(args, config, place, serving, None, screen) as here:
            for event in here.training.events():
                screen.show(event)
                if not verbose and isinstance(event, Event) and event.kind in WARNED:
                    warnings.warn(as_argument_names(event.text), stacklevel=4)
    ended: BaseException | None = here.training.failure
    if here.exit_code and ended is None:
        suspended = here.training.suspended_by
        ended = TrainingError(f"suspended by {suspended}") if suspended else KeyboardInterrupt()
    return place, ended


WARNED = {"warning", "nan", "checkpoint_failed", "overfit", "watchdog"}
"""Kinds of events that are warnings where nothing is printed."""


@contextmanager
def whole_directory(out: Path | None, named: Path) -> Iterator[Path]:
    """Yield the absolute path of a run's directory: `out`, or a new one that is named so."""
    if out is not None:
        yield out.absolute()
        return
    with new_directory(named.absolute()) as place:
        yield place


# Scoring -------------------------------------------------------------------------------------------------------------


def scores_of_files(run: Path, data: Path) -> NDArray[np.float32]:
    """Return the predicted probability of label 1 of each row of a file or folder, as `predict` writes it."""
    from adaptive_rec.cli.predict import inputs_of, strangers, strangers_in_words

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=5)

    files = inputs_of(run, data)
    from adaptive_rec.run.scoring import Scorer

    scorer = Scorer(run, files, labelled=False, warn=warn)
    parts = [part.scores_B for part in scorer.scored()]
    for text in strangers_in_words(strangers(scorer)):
        warn(text)
    return np.concatenate([np.empty(0, np.float32), *parts])


def scores_of_frame(run: Path, frame: Frame) -> NDArray[np.float32]:
    """Return the same of the rows of a frame, which are in a temporary file meanwhile."""
    with tempfile.TemporaryDirectory(prefix="adaptive-rec-") as folder:
        path = Path(folder) / "rows.parquet"
        write_frame(frame, path)
        with named_as_arguments() as names:
            names[str(path)] = names[path.name] = "X"
            return scores_of_files(run, path)


# What is hot ---------------------------------------------------------------------------------------------------------


def hot_tables(run: Path) -> list[dict[str, Any]]:
    """Return for each table of a run how many of its rows were on the device at its newest checkpoint, and the most popular of
    them: ids, values where the data has them, and estimated lookups by the sketch. Raises CheckpointError."""
    from adaptive_rec.checkpoint.saved_placement import newest_placement
    from adaptive_rec.system.regular_files import read_json

    tables = read_json(run / "run.json")["tables"]
    placement = newest_placement(run / "checkpoints", [table["first_row"] for table in tables], sum(t["rows"] for t in tables))
    found = []
    for table, hot, stale in zip(tables, placement.hot_rows, placement.stale_rows, strict=True):
        row_H, estimate_H = placement.arrays.row_of_slot[table["pool"]], placement.arrays.estimate[table["pool"]]
        own = np.flatnonzero((row_H >= table["first_row"]) & (row_H < table["first_row"] + table["rows"]))
        best = own[np.lexsort((row_H[own], -estimate_H[own]))[:SHOWN_ROWS]]
        ids = (row_H[best] - table["first_row"]).tolist()
        most = [
            {"id": id_, "value": value, "lookups": estimate}
            for id_, value, estimate in zip(ids, values_of_ids(table.get("values"), ids), estimate_H[best].tolist(), strict=True)
        ]
        sizes = {name: table[name] for name in ("rows", "dim")}
        found.append({"table": table["name"], **sizes, "hot_rows": hot, "stale_rows": stale, "most_popular": most})
    return found


def values_of_ids(file: str | None, ids: list[int]) -> list[Any]:
    """Return the values that ids of a table stand for; None for those of missing and rare values, and where there is no file."""
    from adaptive_rec.kernels.number_keys import FIRST_ID

    column: Any = []
    with suppress(OSError, ValueError):  # Arrow's errors are ValueErrors
        import pyarrow as pa

        if file:
            with pa.memory_map(file) as mapped:
                column = pa.ipc.open_file(mapped).read_all().column(0)
    return [column[id_ - FIRST_ID].as_py() if FIRST_ID <= id_ < FIRST_ID + len(column) else None for id_ in ids]
