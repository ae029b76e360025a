"""What several processes would do together: bytes, memory and time of each of them, from real batches and without starting any."""
