"""adaptive-rec: train recommendation models whose embedding tables do not fit in GPU memory."""

__version__ = "0.1.0"
