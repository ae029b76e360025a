"""The store of several processes: each row has one owner."""
