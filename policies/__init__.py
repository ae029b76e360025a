"""Policies: which rows are hot, what is skipped, in what order a batch runs. One file each."""
