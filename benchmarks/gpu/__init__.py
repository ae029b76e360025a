"""`make gpu-first`: the first run on a GPU, and what a step costs there beside its rivals. See `__main__.py`."""
