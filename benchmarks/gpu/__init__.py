"""`make gpu-first`: the first run on a GPU, and what training costs there beside its rivals and the machine's own limits. See `__main__.py`."""
