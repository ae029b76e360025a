"""The forecast of a run, without training: its lookups, its memory, the rows that would be hot, the time of a step."""
