"""Computes, before a run starts, what it will hold in memory."""
