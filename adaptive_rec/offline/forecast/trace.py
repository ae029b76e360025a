"""Raw traces of keys as a source of batches. Of a lookup only the key is known.

`.bin` and `.xz` files hold big-endian 64-bit keys in the order of arrival; a `.npy` file holds whole numbers, one key or one line
of keys for each sample. Each column is a table, whose rows are numbered in the order in which keys first occur.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, FeatureSpec, Position, SequenceSpec, TableSpec
from adaptive_rec.data.source import epoch_batches
from adaptive_rec.errors import DataError

SUFFIXES = (".bin", ".npy", ".xz")
KEY_BYTES = 8


class TraceSource:
    """A trace in memory, read once. It has no labels and no held-out samples."""

    def __init__(self, path: Path, dim: int) -> None:
        """Read a trace; its rows count as vectors of `dim` components. Raises DataError where the file holds no trace."""
        keys_SF = read_keys(path)
        self._ids_SF = np.empty(keys_SF.shape, dtype=np.int64)
        rows = [_number(keys_SF[:, f], self._ids_SF[:, f]) for f in range(keys_SF.shape[1])]
        self.tables = tuple(TableSpec(f"K{f + 1}", n, dim) for f, n in enumerate(rows))
        self.features = tuple(FeatureSpec(f"K{f + 1}", f) for f in range(len(rows)))
        self.dense_features = 0
        self.train_samples, self.validation_samples, self.test_samples = len(keys_SF), 0, 0
        self.epochs = 1
        self.malformed_rows = 0
        self.sequence: SequenceSpec | None = None

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the keys from `position` on."""
        for start, stop, after in epoch_batches(position, 0, self.train_samples, batch_size):
            nothing = np.zeros((stop - start, 0), dtype=np.float32)
            yield Batch.one_hot(nothing, self._ids_SF[start:stop], np.zeros(stop - start, dtype=np.float32), after)

    def test_batches(self, batch_size: int, max_samples: int = 0, validation: bool = False) -> Iterator[Batch]:
        """Yield nothing, as a trace has no held-out samples."""
        yield from ()


def read_keys(path: Path) -> NDArray[np.generic]:
    """Return the keys of a file, a line for each sample. Raises DataError where it cannot be read or holds something else."""
    rule = f"a trace must be a readable {' or '.join(SUFFIXES)} file"
    try:
        keys = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _big_endian(path)
    except ValueError:  # NumPy's words advise to load it without safety
        raise DataError(f"{rule}, got {path}, which holds objects or no array") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{rule}, got {path}: {getattr(error, 'strerror', None) or error}") from None
    if not np.issubdtype(keys.dtype, np.integer) or keys.ndim not in (1, 2) or not keys.size:
        raise DataError(
            f"a trace must hold whole numbers, one for each sample or a line of them for each, "
            f"got {path} of shape {keys.shape} and type {keys.dtype}"
        )
    return keys.reshape(len(keys), -1)


def _big_endian(path: Path) -> NDArray[np.generic]:
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    if len(content) % KEY_BYTES:
        raise DataError(f"a trace must hold whole keys of {KEY_BYTES} bytes, got {path} of {len(content)} bytes")
    return np.frombuffer(content, dtype=">u8").astype(np.uint64)


def _number(keys_S: NDArray[np.generic], ids_S: NDArray[np.int64]) -> int:
    """Number a column's keys in the order of first occurrence. Returns how many distinct keys there are."""
    _, first, inverse = np.unique(keys_S, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    ids_S[:] = number[inverse]
    return len(first)
