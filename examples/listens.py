"""Listens of a music service for the HSTU examples: a made-up log with the columns and the skew of Yambda's, or a file of it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from data import add_home, home_of
from torch import Tensor

from adaptive_rec.recipes.yambda import ListenLog

TASTES = 8
HOUR = 3600


@dataclass
class Size:
    """The model, its batches and the made-up log. By default as small as a test needs."""

    depth: int = 2
    dim: int = 16
    heads: int = 2
    batch: int = 64
    history: int = 24
    users: int = 1_000
    tracks: int = 4_000
    """Rows of the tables, at least those that the log has."""
    listens: int = 100_000
    begin: int = 0
    """Number of the listen that training begins with; those before it are history alone."""
    file: str = ""
    """A flat file of Yambda's listens; empty: a made-up log."""
    seed: int = 0
    home: dict[str, Any] = field(default_factory=lambda: {"budget": "512KiB"})
    """Where the rows are: arguments of `adaptive_rec.wrap`."""

    @property
    def raw(self) -> bool:
        """Whether ids get rows as they come, whatever numbers they are."""
        return self.home.get("ids") == "raw"

    def rows(self, log: ListenLog) -> tuple[int, int]:
        """Return the rows of the tables of tracks and users."""
        return (self.tracks, self.users) if self.raw else (max(log.tracks, self.tracks), max(log.users, self.users))


@dataclass
class Batch:
    users: Tensor
    """(B,)"""
    tracks: Tensor
    """(B, T + 1) What a user listened to before, and the track that is played now; 0: nothing."""
    listened: Tensor
    """(B, T + 1) 2: listened to, 1: skipped, 0: not known."""
    labels: Tensor
    """(B,)"""


def write_log(path: Path, size: Size, seed: int = 0, scattered: bool = False) -> None:
    """Write a log of Yambda's columns. A few tracks get most listens, and new ones become popular. Each user seeks tracks of one
    taste, and mostly skips the others. `scattered`: ids are spread over all numbers of 32 bits."""
    dice, count = np.random.default_rng(seed), size.listens
    user = (size.users * dice.random(count) ** 2).astype(np.uint32)
    time = np.sort(dice.integers(0, 30 * 24 * HOUR // 5, count)).astype(np.uint32) * 5
    drift = (size.tracks // 4 * (np.arange(count) / count)).astype(np.int64)
    track = ((size.tracks * dice.random(count) ** 5).astype(np.int64) + drift) % size.tracks
    sought = dice.random(count) < 0.5
    track = np.where(sought, track - track % TASTES + user % TASTES, track) % size.tracks
    liked = dice.random(count) < np.where(track % TASTES == user % TASTES, 0.9, 0.3) - 0.1 * (track % 7 == 0)
    ratio = np.where(liked, dice.integers(50, 101, count), dice.integers(0, 50, count)).astype(np.uint16)
    if scattered:
        user, track = (number.astype(np.uint32) * np.uint32(0x9E3779B1) for number in (user, track))
    columns = {
        "uid": user, "item_id": track.astype(np.uint32), "timestamp": time, "is_organic": dice.integers(0, 2, count, np.uint8),
        "played_ratio_pct": ratio, "track_length_seconds": dice.integers(60, 400, count).astype(np.uint32),
    }  # fmt: skip
    table = pyarrow.table(columns).sort_by([("uid", "ascending"), ("timestamp", "ascending")])
    pyarrow.parquet.write_table(table, path)


def log_of(size: Size) -> ListenLog:
    """Return the log, which is read or made up once."""
    return read_log(size.file) if size.file else made_up(size.users, size.tracks, size.listens, size.raw)


read_log = cache(ListenLog)


@cache
def made_up(users: int, tracks: int, listens: int, scattered: bool = False) -> ListenLog:
    with TemporaryDirectory() as folder:
        size = Size(users=users, tracks=tracks, listens=listens)
        write_log(path := Path(folder) / "listens.parquet", size, scattered=scattered)
        return ListenLog(path)


def days(log: ListenLog, size: Size) -> list[tuple[int, int]]:
    """Return where the listens of each day begin and end."""
    return [(max(begin, size.begin), end) for begin, end in log.windows(24 * HOUR) if end > size.begin]


def batches(log: ListenLog, size: Size, begin: int = 0, end: int | None = None) -> Iterator[Batch]:
    for each in log.batches(size.batch, size.history, begin, end):
        tracks = np.concatenate([each.history_BT, each.track_B[:, None]], axis=1)
        listened = np.pad(each.listened_BT, ((0, 0), (0, 1)))
        labels = torch.from_numpy(each.label_B).to(torch.get_default_dtype())
        yield Batch(torch.from_numpy(each.user_B), torch.from_numpy(tracks), torch.from_numpy(listened), labels)


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Return the ROC AUC; equal scores count half."""
    _, place = torch.unique(scores, return_inverse=True)
    wins = torch.bincount(place, labels == 1).double(), torch.bincount(place, labels == 0).double()
    below = wins[1].cumsum(0) - wins[1] / 2
    return float((wins[0] * below).sum() / (wins[0].sum() * wins[1].sum()))


class Popularity:
    """The rival to beat: the share of a track's listens so far that were not skips."""

    def __init__(self) -> None:
        self._played, self._listened = Counter[int](), Counter[int]()

    def scores(self, batch: Batch) -> list[float]:
        return [(self._listened[now] + 1) / (self._played[now] + 2) for now in batch.tracks[:, -1].tolist()]

    def see(self, batch: Batch) -> None:
        now = batch.tracks[:, -1]
        self._played.update(now.tolist())
        self._listened.update(now[batch.labels == 1].tolist())


def arguments() -> tuple[int, Size]:
    """Return steps and size as the command line gives them; 0 steps: the whole log."""
    parser = argparse.ArgumentParser(description="Train HSTU on listens in order of time.")
    parser.add_argument("--steps", type=int, default=0)
    for each in fields(Size):
        if each.name != "home":
            parser.add_argument(f"--{each.name}", type=type(each.default), default=each.default)
    add_home(parser)
    given = vars(parser.parse_args())
    for name in ("steps", "depth", "dim", "heads", "batch", "history", "users", "tracks", "listens", "begin"):
        if given[name] < (least := 0 if name in ("steps", "depth", "history", "begin") else 1):
            parser.error(f"--{name} must be {least} or more, got {given[name]}")
    if given["dim"] % given["heads"]:
        parser.error(f"--dim must be a multiple of --heads, got {given['dim']} and {given['heads']}")
    steps = given.pop("steps")
    home = home_of(parser, given, ("tracks", "users"))
    return steps, Size(**given, home=home)
