"""Profiles of a data set's lookups, counted exactly in memory that depends on the tables, not on the data."""
