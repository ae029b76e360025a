"""Zstandard as Python 3.14 has it; for earlier ones there is a backport of 2 MB, where other bindings take 24."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor as ZstdDecompressor
    from compression.zstd import ZstdError as ZstdError
else:
    from backports.zstd import ZstdDecompressor as ZstdDecompressor
    from backports.zstd import ZstdError as ZstdError
