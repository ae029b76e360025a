"""Thin files for other people's training loops: each needs the library that it is named after, and nothing else needs them."""
