"""Facts about the operating system and requests to it."""
