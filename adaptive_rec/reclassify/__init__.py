"""Observes batches and, when a window ends, decides which rows are hot, cold or stale."""
