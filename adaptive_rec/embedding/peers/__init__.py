"""The processes that train together: each owns a part of the rows, and fetches those of other ranks for each batch."""
