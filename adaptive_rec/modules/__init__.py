"""Embedding modules in two tiers for the user's own training loop, and the runtime that they share."""
