"""Readers of public click logs, one file each; those that are CSV-like share `columns.py`."""
