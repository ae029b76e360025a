"""What training and held-out rows say of a run before it trains: labels of one class, values that only held-out rows have,
columns that tell the label, files that are sorted, columns with nearly as many values as rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.units import percent, readable, whole

SKEWED = 3.0
"""Ratio of the odds of label 1 among training and held-out rows from which on rows look sorted by their label."""
LEAST_ROWS, LEAST_HELD_OUT = 100, 20
"""Fewer rows, or fewer that are held out, say nothing of a column."""
UNSEEN, BEYOND_USUAL = 0.5, 0.3
"""Share of held-out rows with a value that training never saw from which on it is said, and how much it must exceed the share
that single training rows, held out instead, would have."""
MANY_VALUES = 0.5
"""Values for each row from which on a column has nearly as many values as rows."""
IN_ORDER, LEAST_FALLS = 0.02, 20
"""A file is sorted by a column whose values fall from one row to the next this share as often as in random order, or less,
where that would be so many times at the least."""
MOST_WRONG, OF_GUESS = 0.01, 0.1
"""A column tells the label where a rule by its values is wrong for this share of rows at the most, and for this share of
those that always naming the commoner label is wrong for."""
LEAST_RARE = 20
"""Rows of the rarer label below which no column is said to tell it."""
FEW_VALUES, LEAST_OF_VALUE, PURE = 10, 50, 0.99
"""One value tells the rarer label where its column has few values, it has so many rows, and this share of them have that
label."""
BINS, LEAST_OF_BIN = 500, 20
"""Ranges into which the numbers of a dense column are divided, of equal numbers of rows, and the least number."""
MOST_LINES = 5
"""Columns that are named of each kind."""
BY_POSITION = "rows are held out by position: if the file is sorted by its label, shuffle it first"
POSITIVES = (
    "a log of positives alone needs rows with label 0: rows that were shown and not chosen, or those that --item COLUMN "
    "--negatives 4 in place of --label draws"
)
CHECK_LABEL = "check --label: it may be another column, or a comparison such as 'rating >= 4'"
CLOCK_WORDS = frozenset("day days date hour week weekday month year time timestamp dt".split())


@dataclass(frozen=True)
class Labels:
    """The labels of training or held-out rows, of all or of those that were looked at."""

    rows: int
    """All of them."""
    positives: int
    """Those looked at that have label 1."""
    looked: int = -1
    """Those that were looked at; by default all."""

    def __post_init__(self) -> None:
        if self.looked < 0:
            object.__setattr__(self, "looked", self.rows)

    @classmethod
    def of(cls, labels_S: NDArray[Any], rows: int) -> Labels:
        """Return the labels of some of so many rows."""
        return cls(rows, int(np.count_nonzero(labels_S)), len(labels_S))


@dataclass(frozen=True)
class Part:
    """Training or held-out rows: some that were looked at, spread over them in their order."""

    rows: int
    """All of them."""
    labels_S: NDArray[np.int32] | NDArray[np.float32]
    ids_SC: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))
    """Of the sparse columns with one value a row, numbered in the order in which values first occur in the file."""
    dense_SX: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    """NaN is missing."""

    @property
    def looked(self) -> int:
        return len(self.labels_S)


def named(part: Part | Labels, what: str) -> str:
    """Return how many rows are looked at: "120 held-out rows"."""
    return f"{whole(part.looked)} {what} row{'s' * (part.looked != 1)}{' looked at' * (part.looked < part.rows)}"


NOTHING = Part(0, np.empty(0, dtype=np.int32))


@dataclass(frozen=True)
class Looked:
    """Rows of a run, looked at before it trains."""

    labels: tuple[Labels, Labels]
    """Of training and held-out rows: the same rows, or more of them."""
    train: Part = NOTHING
    held_out: Part = NOTHING
    sparse_names: tuple[str, ...] = ()
    dense_names: tuple[str, ...] = ()
    unseen_C: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Share of the held-out rows looked at whose value none of the training rows compared has."""
    usual_C: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """The same share of single training rows."""
    compared: int = 0
    """Training rows whose values were compared."""
    values_C: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Values of each column for each row, where that is known; else NaN."""
    missing_id: int = 0
    by_time: bool = False
    """The newest rows are held out."""
    follows: bool = True
    """Held-out rows come after the training rows."""
    item: str = ""
    """Of a log of positives alone, the feature of the items."""
    user: str = ""
    """And that of the users."""

    @property
    def held_out_one_class(self) -> bool:
        """Whether the held-out rows have labels of one class."""
        labels = self.labels[1]
        return labels.looked > 0 and labels.positives in (0, labels.looked)


def lines(looked: Looked) -> list[str]:
    """Return what is to be said of rows, a line each; none of data without such a fault."""
    found = [[] if looked.item else list(label_lines(*looked.labels))]
    if looked.sparse_names or looked.dense_names:
        found += [_first(kind(looked)) for kind in (_telling, _unseen, _many)]
    return [line for lines_of_kind in found for line in lines_of_kind]


def _first(found: Iterable[str]) -> list[str]:
    every = list(found)
    left = len(every) - MOST_LINES
    return every if left <= 0 else [*every[:MOST_LINES], f"the same is so of {left} further column{'s' * (left > 1)}"]


def label_lines(train: Labels, held_out: Labels) -> Iterator[str]:
    """Yield what is to be said of labels: that a part has one class alone, or that rows look sorted by their label."""
    shares = {
        what: part.positives / part.looked
        for what, part in (("training", train), ("held-out", held_out))
        if part.looked
    }
    parts = {"training": train, "held-out": held_out}
    alone = {what: share for what, share in shares.items() if share in (0.0, 1.0)}
    if len(alone) == 2 and shares["training"] == shares["held-out"]:
        share = shares["training"]
        rows = f"all {named(train, 'training')} have label {share:.0f}, and so have the {named(held_out, 'held-out')}"
        yield f"{rows}: there is nothing to learn, and AUC is not defined; {POSITIVES if share else CHECK_LABEL}"
        return
    for what, share in alone.items():
        part = parts[what]
        those = f"all {named(part, what)} have" if part.looked > 1 else f"the only {what} row has"
        nothing = "there is nothing to learn" if what == "training" else "there is nothing to compare, AUC is not defined"
        yield f"{those} label {share:.0f}: {nothing}; {BY_POSITION}"
    if len(shares) == 2 and not alone:
        odds = [share / (1 - share) for share in shares.values()]
        if max(odds) > SKEWED * min(odds):
            trained, held = (percent(share) for share in shares.values())
            yield (
                f"{trained} of the training rows and {held} of the held-out rows have label 1; {BY_POSITION}"
            )


# Columns ---------------------------------------------------------------------------------------------------------------


def _unseen(looked: Looked) -> Iterator[str]:
    """Say which columns have values in held-out rows that training never saw, and by which the file is sorted."""
    in_order = _sorted_columns(looked)
    of = "" if looked.compared >= looked.train.rows else " looked at"
    for c, name in enumerate(looked.sparse_names):
        enough = looked.held_out.looked >= LEAST_HELD_OUT and looked.compared >= LEAST_ROWS
        unseen = float(looked.unseen_C[c]) if enough else np.nan
        shown = readable(name, word=60)
        if unseen >= UNSEEN and unseen - looked.usual_C[c] >= BEYOND_USUAL:
            known = f"none of the {whole(looked.compared)} training rows{of} has"
            text = f"{percent(unseen)} of the {named(looked.held_out, 'held-out')} have a value of {shown} that {known}: "
            if name == looked.user:
                yield text + f"new users are recommended what all users choose{_NOT_IN_TIME * (not looked.by_time)}"
            elif name == looked.item:
                yield text + f"new items cannot be recommended, and count as missed{_NOT_IN_TIME * (not looked.by_time)}"
            elif name in in_order and not _is_clock(name):
                yield text + f"equal values stand together in the file, and {_REMEDY}, or leave {shown} out of the schema"
            else:
                way = "or hold out other rows (--time COLUMN, data.test_range)" * (not looked.by_time)
                yield text + f"such values are new to a model; leave {shown} out of the schema{', ' * bool(way)}{way}"
        elif name in in_order and not _is_clock(name):
            yield f"the file is sorted by {shown}, or equal values stand together, and {_REMEDY}"
    for name in (name for name in looked.dense_names if name in in_order and not _is_clock(name)):
        yield f"the file is sorted by {readable(name, word=60)}, and {_REMEDY}"


_NOT_IN_TIME = "; rows are held out by position: hold out the newest ones (--time COLUMN), or shuffle the file"
_REMEDY = (
    "rows are held out by position, so those held out are others than those trained on: shuffle the file, or hold out the "
    "newest rows (--time COLUMN)"
)


def _sorted_columns(looked: Looked) -> set[str]:
    """Return the columns by whose values the file is sorted, or whose equal values stand together."""
    if looked.by_time:
        return set()
    parts = [looked.train, looked.held_out] if looked.follows else [looked.train]
    found = set()
    for c, name in enumerate(looked.sparse_names):
        ids_S = np.concatenate([part.ids_SC[:, c] for part in parts if len(part.ids_SC)])
        ids_S = ids_S[ids_S > 1]  # without missing and infrequent values
        few = not looked.values_C[c] < MANY_VALUES or len(np.unique(ids_S)) > MANY_VALUES * len(ids_S)
        if len(ids_S) >= LEAST_ROWS and not few and is_sorted(ids_S):
            found.add(name)
    for x, name in enumerate(looked.dense_names):
        values_S = np.concatenate([part.dense_SX[:, x] for part in parts if len(part.dense_SX)])
        values_S = values_S[~np.isnan(values_S)]
        if len(values_S) >= LEAST_ROWS and (is_sorted(values_S) or is_sorted(-values_S)):
            found.add(name)
    return found


def is_sorted(values_S: NDArray[np.int64] | NDArray[np.float32]) -> bool:
    """Return whether values rise, but for a few, where in random order they would fall often."""
    _, counts = np.unique(values_S, return_counts=True)
    usual = (len(values_S) - 1) * (1 - float(np.sum(np.square(counts / len(values_S))))) / 2
    return usual >= LEAST_FALLS and float(np.count_nonzero(np.diff(values_S) < 0)) <= IN_ORDER * usual


def _is_clock(name: str) -> bool:
    """Return whether a column is a day, an hour or the like, by which logs are sorted as they should be."""
    return bool(set(re.split(r"[^a-z]+", name.lower())) & CLOCK_WORDS)


def _many(looked: Looked) -> Iterator[str]:
    """Say which columns have nearly as many values as rows."""
    rows = looked.train.rows + looked.held_out.rows
    for name, ratio in zip(looked.sparse_names, looked.values_C, strict=True):
        if rows >= LEAST_ROWS and ratio >= MANY_VALUES and name in (looked.item, looked.user):
            many = f"{readable(name, word=60)} has {percent(min(1.0, ratio))} as many values as there are rows"
            yield f"{many}: most have too few rows to be learnt from"
        elif rows >= LEAST_ROWS and ratio >= MANY_VALUES:
            yield (
                f"{readable(name, word=60)} has {percent(min(1.0, ratio))} as many values as there are rows: most have too few "
                "rows to be learnt from; leave it out of the schema, or raise min_count, below which values share a row"
            )


def _telling(looked: Looked) -> Iterator[str]:
    """Say which columns tell the label."""
    parts = [part for part in (looked.train, looked.held_out) if len(part.labels_S)]
    labels_S = np.concatenate([part.labels_S for part in parts])
    of = whole(len(labels_S))

    for c, name in enumerate(looked.sparse_names):
        ids_S = np.concatenate([part.ids_SC[:, c] for part in parts])
        codes_S = np.unique(ids_S, return_inverse=True)[1]
        found = tells(codes_S, labels_S) or tells((ids_S == looked.missing_id).astype(np.int64), labels_S, PRESENCE)
        if found:
            yield _told(name, found, of)
    for x, name in enumerate(looked.dense_names):
        values_S = np.concatenate([part.dense_SX[:, x] for part in parts])
        missing_S = np.isnan(values_S)
        present_S = np.sort(values_S[~missing_S])
        edges = np.unique(present_S[:: max(LEAST_OF_BIN, len(present_S) // BINS)])
        codes_S = np.where(missing_S, len(edges) + 1, np.searchsorted(edges, values_S))
        if found := tells(codes_S, labels_S) or tells(missing_S.astype(np.int64), labels_S, PRESENCE):
            yield _told(name, found, of)


PRESENCE = "whether it has a value"


def _told(name: str, found: str, of: str) -> str:
    return (
        f"{readable(name, word=60)} tells the label: {found} ({of} rows looked at). If it is known only after the label, scores "
        "of new rows will be far worse than those held out: leave it out of the schema"
    )


def tells(codes_S: NDArray[np.int64], labels_S: NDArray[Any], what: str = "its value") -> str:
    """Return how a column with these values (small numbers) tells the label; empty where it does not. The rule by its values is
    made of every second row and tried on the others."""
    made, tried = slice(0, None, 2), slice(1, None, 2)
    least = min(int(np.sum(labels_S[tried])), int(np.sum(1 - labels_S[tried])))
    if least < LEAST_RARE:
        return ""
    size = int(codes_S.max()) + 1
    counts_V = np.bincount(codes_S[made], minlength=size)
    ones_V = np.bincount(codes_S[made], weights=labels_S[made], minlength=size)
    common = float(np.mean(labels_S[made])) > 0.5
    rule_V = np.where(2 * ones_V == counts_V, common, 2 * ones_V > counts_V)
    wrong = int(np.count_nonzero(rule_V[codes_S[tried]] != (labels_S[tried] == 1)))
    rows = len(labels_S[tried])
    if wrong <= MOST_WRONG * rows and wrong <= OF_GUESS * least:
        return f"{what} gives it for {percent(1 - wrong / rows)} of the rows"
    return _one_value(codes_S, labels_S, what)


def _one_value(codes_S: NDArray[np.int64], labels_S: NDArray[Any], what: str) -> str:
    """Return how one value of a column with few tells the rarer label."""
    counts_V = np.bincount(codes_S)
    if np.count_nonzero(counts_V) > FEW_VALUES:
        return ""
    ones_V = np.bincount(codes_S, weights=labels_S)
    rarer = int(np.mean(labels_S) <= 0.5)
    pure_V = (ones_V if rarer else counts_V - ones_V) >= PURE * counts_V
    found_V = pure_V & (counts_V >= LEAST_OF_VALUE)
    if not found_V.any():
        return ""
    value = "a value" if what != PRESENCE else "its presence or absence"
    return f"{value} that {whole(int(counts_V[found_V].sum()))} rows have goes with label {rarer} nearly always"
