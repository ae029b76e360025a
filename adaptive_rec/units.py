"""Sizes, counts, shares and durations as people write and read them, and names from elsewhere as terminals may show them."""

from __future__ import annotations

import re


def parse_size(text: str) -> int:
    """Return the bytes of ``"16GiB"``, ``"1.5 MB"``, ``"4096"``.

    Raises ValueError for text that is no size, and for a fraction without a unit: 1.5 hardly means one byte.
    """
    from pydantic import ByteSize, TypeAdapter  # slow to import, and only needed where sizes are read
    from pydantic_core import PydanticCustomError

    if re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*[A-Za-z]*\s*", text) is None:  # pydantic reads a size and ignores what follows it
        raise PydanticCustomError("byte_size", "could not parse value and unit from byte string")
    size_bytes = int(TypeAdapter(ByteSize).validate_python(text))
    if "." in text and re.fullmatch(r"[\d.]+ *[bB]?", text.strip()):
        raise ValueError(f"a size with a fraction needs a unit such as GiB, got {text!r}")
    return size_bytes


def parse_rate(text: str) -> float:
    """Return the bytes a second of ``"25Gbit/s"``, ``"800 Mbit/s"``. Raises ValueError for other text, and for 0."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kMGT]?)bit/s\s*", text, re.ASCII)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"a rate must be above 0 and have a unit such as Gbit/s, got {text!r}")
    return float(found[1]) * 1000.0 ** " kMGT".index(found[2] or " ") / 8


def toml_number(text: str) -> str:
    """Return a number such as .5 or 5. as TOML writes it, 0.5 or 5.0; other text as it is."""
    found = re.fullmatch(r"([-+]?)([0-9]*)\.([0-9]*)((?:[eE][-+]?[0-9]+)?)", text)
    if found is None or not found[2] + found[3]:
        return text
    return f"{found[1]}{found[2] or 0}.{found[3] or 0}{found[4]}"


def size(size_bytes: float) -> str:
    """Return a size in the largest fitting unit: 35651584 -> 34 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.1f} {unit}" if size_bytes < 10 and unit != "B" else f"{size_bytes:,.0f} {unit}"


def exact_size(size_bytes: int) -> str:
    """Return a size as a configuration file writes it, without rounding: 8388608 -> 8MiB, 8388609 -> 8388609."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


def comparable_size(size_bytes: int) -> str:
    """Return a size with two decimals from 1 GiB on, to compare it with others that may be close."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 1 << 30 else size(size_bytes)


def whole(number: float) -> str:
    """Return a number without decimals: 1234567 -> 1,234,567."""
    return f"{number:,.0f}"


def counted(number: float, what: str) -> str:
    """Return a number of things: 1 row, 1,234 rows."""
    return f"{whole(number)} {what}{'s' * (number != 1)}"


def four(number: float) -> str:
    """Return a number with four decimals, as losses and AUC are compared."""
    return f"{number:.4f}"


def count(number: float) -> str:
    """Return a number shortened: 1234567 -> 1.2 M."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= limit:
            return f"{number / (1e3 if suffix == ' k' else limit):.1f}{suffix}"
    return f"{number:,.0f}"


def percent(share: float) -> str:
    """Return a share in whole percents, below 10 % with one decimal."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def fine(share: float) -> str:
    """Return a share in percent with one decimal, to compare it with others that may be close."""
    return f"{share:.1%}"


def clock(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds: 75 -> 1:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def printable(text: str, keep: str = "") -> str:
    """Return text from elsewhere with every character that cannot be seen written out, as in Python.

    Those are control characters, which steer a terminal (``\\x1b``), marks that change the direction of writing (``\\u202e``),
    lone surrogates, which stand for bytes of file names and which UTF-8 cannot hold, and blanks where there is nothing else
    (``\\x20``). Characters in `keep` stay.
    """
    if text and not text.strip(" "):
        return r"\x20" * len(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def readable(text: str, word: int = 300, line: int = 2000) -> str:
    """Return a message whose words and lines of an absurd length, such as names of thousands of characters, have lost their
    middle."""
    lines = re.sub(rf"\S{{{word + 1},}}", lambda found: _ends(found[0], word), text).split("\n")
    return "\n".join(_ends(each, line) for each in lines)


def _ends(text: str, most: int) -> str:
    half = most // 2 - 8
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"
