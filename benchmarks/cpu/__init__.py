"""`make bench`: what a training step costs on the CPU, beside its dense part and its rivals. See `__main__.py`."""
