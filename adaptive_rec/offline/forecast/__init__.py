"""The forecast of a run, without training: what its lookups are like, what it needs, what would be hot, and what steps take."""
