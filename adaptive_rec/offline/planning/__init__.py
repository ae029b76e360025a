"""Planning of runs: a rehearsal with small tables, settings that fit a machine's memory, predicted hot lookups."""
