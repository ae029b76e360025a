"""Policies, one file each: which rows are hot, what is skipped, and in which order batches run."""
