"""Logs of positives alone: their items, and the negatives that are drawn among them."""
