"""Segments of rows on a disk are tiny in a process that imports this, so that nearly all rows are read from files."""

from adaptive_rec.embedding.disk import row_log

row_log._LEAST_SEGMENT_BYTES, row_log._KEPT_BYTES = 8192, 0
