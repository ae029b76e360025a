"""Tables of rows in files of a user's own: CSV, TSV and Parquet, described by a schema."""
