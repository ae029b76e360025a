"""Loads batches: sources, prepared folders and readers of click logs."""
