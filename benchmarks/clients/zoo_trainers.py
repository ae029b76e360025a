"""Loops that are not the user's own."""
from __future__ import annotations
def clients():
    return iter(())
