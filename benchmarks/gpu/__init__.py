"""`make bench-gpu`: what training costs on a GPU, beside its rivals and the machine's own limits. See `__main__.py`."""
