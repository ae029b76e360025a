"""Figures as people read them, and names of strangers as terminals may see them."""

from __future__ import annotations


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
