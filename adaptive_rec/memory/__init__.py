"""Computes what a run will hold in memory before it begins."""
