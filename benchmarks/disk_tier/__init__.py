"""Rows on a disk beside tables in memory, mapped files and RocksDB, all under a limit on memory."""
