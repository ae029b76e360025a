"""Sizes, counts, shares and durations as people write and read them, and names from elsewhere as terminals may show them."""

from __future__ import annotations

import re


def parse_size(text: str) -> int:
    """Bytes of ``"16GiB"``, ``"1.5 MB"``, ``"4096"``. Raises ValueError for what is no size, or has a fraction of a byte and no
    unit: who writes 1.5 hardly means one byte."""
    from pydantic import ByteSize, TypeAdapter  # not above: who only writes sizes starts faster

    size_bytes = int(TypeAdapter(ByteSize).validate_python(text))
    if "." in text and re.fullmatch(r"[\d.]+ *[bB]?", text.strip()):
        raise ValueError(f"a size with a fraction needs a unit such as GiB, got {text!r}")
    return size_bytes


def size(size_bytes: float) -> str:
    """35651584 -> 34 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.1f} {unit}" if size_bytes < 10 and unit != "B" else f"{size_bytes:,.0f} {unit}"


def exact_size(size_bytes: int) -> str:
    """8388608 -> 8MiB, as a configuration would have it; bytes where that would lose some."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


def comparable_size(size_bytes: int) -> str:
    """With two decimals from 1 GiB on, for sizes that are compared and may be close together."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 1 << 30 else size(size_bytes)


def whole(number: float) -> str:
    return f"{number:,.0f}"


def percent(share: float) -> str:
    """Whole percents, one decimal where there are few."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def fine(share: float) -> str:
    """One decimal, where shares are compared by less than a percent."""
    return f"{share:.1%}"


def count(number: float) -> str:
    """1234567 -> 1.2 M."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= limit:
            return f"{number / (1e3 if suffix == ' k' else limit):.1f}{suffix}"
    return f"{number:,.0f}"


def clock(seconds: float) -> str:
    """75 -> 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def printable(text: str) -> str:
    """Text from elsewhere with what would steer a terminal written out, such as ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
