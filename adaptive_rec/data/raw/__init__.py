"""Raw keys of tables: which of them have a row of their own."""
