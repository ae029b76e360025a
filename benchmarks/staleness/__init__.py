"""Whether a rule of staleness beats chance: `make study-staleness`."""
