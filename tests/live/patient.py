"""A paced run that waits for its scraper as long after a signal as without one: `Job` imports this in its process."""

from adaptive_rec.live import scrapes

from . import paced  # noqa: F401

scrapes.LONGEST_HURRIED_SECONDS = scrapes.LONGEST_SECONDS
