"""The recognition of a public log by its first lines."""

from __future__ import annotations

import re
from pathlib import Path

from adaptive_rec.data.lines import line_blocks
from adaptive_rec.errors import UsageError

RATING = re.compile(rb"[0-9]+(\.[0-9]+)?")


def recognise(path: Path, line: bytes) -> str:
    """Return the format of a log, of which `line` is the first line; empty where it is none of them."""
    names = line.decode("utf-8", "replace").strip().split(",")
    if names[:3] == ["id", "click", "hour"]:
        return "avazu"
    if "click_article_id" in names:
        return "globo"
    if len(names) == 5 and names[3] in ("pv", "buy", "cart", "fav"):
        return "taobao"
    if line.count(b"::") == 3:
        check_ratings(path)
        return "movietweetings"
    return "criteo" if b"\t" in line else ""


def check_ratings(path: Path) -> None:
    """Raise UsageError where a log of ratings is MovieLens, or may be: MovieTweetings has ratings up to 10, and films by their
    numbers of IMDb, of 7 digits or more."""
    lines = next(line_blocks(path), b"").splitlines()
    rows = [row for row in (line.split(b"::") for line in lines) if len(row) == 4]
    ratings = [float(rating) for _, _, rating, _ in rows if RATING.fullmatch(rating)]
    digits = [len(movie) >= 7 and movie.isdigit() for _, movie, _, _ in rows]
    if max(ratings, default=0.0) > 5 or (digits and sum(digits) > len(digits) / 2):
        return
    raise UsageError(
        f"the format of {path} must be MovieTweetings, with ratings up to 10 and numbers of IMDb, it has ratings up to "
        f"{max(ratings, default=0.0):g}, as MovieLens has; train on it as a CSV: (echo user,item,rating,timestamp; "
        f"sed 's/::/,/g' {path}) > ratings.csv, with --label 'rating >= 4'"
    )
