"""Policies side by side: the same data, budget and seeds, runs in turn, and which differences are beyond noise."""
