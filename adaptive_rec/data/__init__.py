"""Sources of batches."""
