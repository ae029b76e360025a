"""A run and its directory."""
