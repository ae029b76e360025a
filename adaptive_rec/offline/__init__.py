"""Tools that read data and runs but do not train."""
