"""Embedding rows: where they live, how they are gathered, updated and moved."""
