"""What several processes would do, without starting any: bytes counted from the run's own batches, memory, time of a step."""
