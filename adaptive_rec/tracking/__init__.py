"""This package measures, while training runs, how often rows are touched and how far they move."""
