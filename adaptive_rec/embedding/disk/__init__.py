"""Rows on a disk."""
