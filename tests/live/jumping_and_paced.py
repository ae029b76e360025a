"""What a run imports whose wall clock jumps, and whose steps come slowly."""

from . import jumping, paced  # noqa: F401
