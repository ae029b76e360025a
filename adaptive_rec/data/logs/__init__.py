"""Readers of public click logs, one file each."""
