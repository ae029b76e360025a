"""Observes batches and decides, when a window ends, which rows are hot, cold or stale."""
