"""The device half of the embedding store: batches staged ahead, rows that move between host and device."""
