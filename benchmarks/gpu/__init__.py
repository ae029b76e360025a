"""`make gpu-first`: the first run on a GPU, and what training costs there, beside its rivals. See `__main__.py`."""
