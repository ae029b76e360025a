"""The state of a run between two steps."""
