"""Comparison of policies on the same data, budget and seeds, with the differences that are beyond noise."""
