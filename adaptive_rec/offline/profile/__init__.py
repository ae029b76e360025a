"""What the lookups of a data set are like: counted exactly, in memory that depends on the tables and not on the data."""
