"""Write ratings of films as a CSV file in order of time, its users numbered as they come:

python examples/film_ratings.py ratings.dat ratings.csv

`ratings.dat` is that of MovieTweetings (user::film::rating::seconds since 1970), which S. Dooms, T. De Pessemier and L. Martens
collected from public posts (MovieTweetings: a Movie Rating Dataset Collected From Twitter, CrowdRec at RecSys 2013; MIT licence).
"""

from __future__ import annotations

import sys
from pathlib import Path

RATINGS = 40_000


def ordered(lines: list[str]) -> list[str]:
    """Return the first ratings by time, as lines of a CSV file; numbers of users do not depend on those of `lines`."""
    rows = sorted((int(time), int(film), rating, user) for user, film, rating, time in (line.split("::") for line in lines))
    numbers: dict[str, int] = {}
    return [
        f"{numbers.setdefault(user, len(numbers) + 1)},{film},{rating},{time}" for time, film, rating, user in rows[:RATINGS]
    ]


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    lines = ordered(source.read_text(encoding="utf-8").splitlines())
    target.write_text("\n".join(["user,film,rating,time", *lines, ""]), encoding="utf-8")
