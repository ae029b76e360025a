"""TorchRec's KeyedJaggedTensor, as arrays of ids and of the lengths of bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import expand_ranges
from adaptive_rec.kernels.lookups import find_features
from adaptive_rec.modules.loop.inputs import Jagged, as_ids, check_integers


def check_keyed(given: Any) -> None:
    """Raise TypeError for an object without the methods of a KeyedJaggedTensor."""
    lengths = any(hasattr(given, method) for method in ("lengths", "offsets"))
    if not lengths or not all(hasattr(given, method) for method in ("keys", "values")):
        raise TypeError(
            f"features must be a KeyedJaggedTensor, with keys(), values() and lengths(), got {type(given).__name__}"
        )


@dataclass(frozen=True)
class KeyedBatches:
    """The number of bags of each key of a KeyedJaggedTensor. It is the number of samples, unless keys have batches of their own
    (TorchRec's ``stride_per_key_per_rank``)."""

    names: tuple[str, ...]
    bags_F: tuple[int, ...]
    lengths: Tensor
    """Ids of each bag, key by key; the bounds of the bags where the object has no ``lengths()``."""

    @staticmethod
    def of(given: Any) -> KeyedBatches:
        """Read an object with TorchRec's methods. Raises TypeError where they are missing, ValueError where bags and keys do not
        fit together."""
        check_keyed(given)
        names = tuple(given.keys())
        has_lengths = hasattr(given, "lengths")
        lengths = given.lengths() if has_lengths else given.offsets()
        bags = lengths.numel() if has_lengths else max(lengths.numel() - 1, 0)
        bags_F = _bags_per_key(given)
        if not bags_F:
            if not names or bags % len(names):
                raise ValueError(f"the number of lengths must be a multiple of the {len(names)} keys, got {bags}")
            bags_F = [bags // len(names)] * len(names)
        if len(bags_F) != len(names) or min(bags_F) < 0 or sum(bags_F) != bags:
            raise ValueError(
                f"stride_per_key must be the number of lengths of each of the {len(names)} keys, of {bags} together, got {bags_F}"
            )
        return KeyedBatches(names, tuple(bags_F), lengths)

    def places(self, features: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of features; of a key that occurs twice the last one counts, as in TorchRec. Raises ValueError where
        one is missing."""
        place_of = {name: place for place, name in enumerate(self.names)}
        if missing := [name for name in features if name not in place_of]:
            raise ValueError(f"features must have the key {missing[0]}, got {', '.join(self.names)}")
        return np.array([place_of[name] for name in features], dtype=np.int64)

    def bags_of_samples(self, given: Any, features: Sequence[str]) -> list[Tensor] | None:
        """Return the numbers (B) of the samples' bags for each feature: those of TorchRec's ``inverse_indices``. None where each
        key has a bag for each sample. Raises ValueError where features of unequal batches come without ``inverse_indices``."""
        bags_R = [self.bags_F[place] for place in self.places(features)]
        inverse = _inverse_of(given)
        if inverse is not None:
            index_of = dict(zip(*inverse, strict=True))
            if missing := [name for name in features if name not in index_of]:
                raise ValueError(f"inverse_indices must have the key {missing[0]}, got {', '.join(index_of)}")
            return [_checked(name, index_of[name], bags) for name, bags in zip(features, bags_R, strict=True)]
        if len(set(bags_R)) > 1:
            each = ", ".join(f"{name} {bags}" for name, bags in zip(features, bags_R, strict=True))
            raise ValueError(f"features must have inverse_indices where their batches are of unequal sizes, got {each}")
        return None if bags_R[0] == max(self.bags_F) else [torch.arange(bags) for bags in bags_R]


def _bags_per_key(given: Any) -> list[int]:
    """Return the number of bags of each key, or nothing where the object does not say it."""
    if hasattr(given, "stride_per_key"):
        return [int(bags) for bags in given.stride_per_key()]
    if hasattr(given, "stride_per_key_per_rank"):
        return [int(sum(bags_of_rank)) for bags_of_rank in given.stride_per_key_per_rank()]
    return []


def _inverse_of(given: Any) -> tuple[list[str], Tensor] | None:
    """Return TorchRec's inverse indices: keys, and the bag of each key and sample (K, B). None where there are none."""
    method = next((name for name in ("inverse_indices_or_none", "inverse_indices") if hasattr(given, name)), None)
    found = getattr(given, method)() if method is not None else None
    if found is None or found[1].numel() == 0:  # TorchRec, too, takes no indices as none given
        return None
    keys, index_KB = list(found[0]), found[1]
    check_integers("inverse_indices", index_KB)
    if index_KB.dim() != 2 or len(index_KB) != len(keys):
        raise ValueError(
            f"inverse_indices must have a row for each of its {len(keys)} keys, got shape {tuple(index_KB.shape)}"
        )
    return keys, index_KB


def _checked(name: str, index_B: Tensor, bags: int) -> Tensor:
    """Return the bags of a feature's samples. Raises ValueError for a bag that it does not have."""
    given_B = as_ids(index_B)
    wrong_B = given_B[(given_B < 0) | (given_B >= bags)]
    if len(wrong_B):
        raise ValueError(f"inverse_indices of key {name} must lie in [0, {bags}), got {wrong_B[0]}")
    return index_B


@dataclass(frozen=True)
class NumberedFeatures:
    """Features with rows in place of raw ids, with the methods of a KeyedJaggedTensor. A feature of several tables is there for
    each of them."""

    names: Sequence[str]
    row_N: Tensor
    length_FB: Tensor
    """Lookups of each feature and sample (F * B)."""
    weights_N: Tensor | None

    def keys(self) -> Sequence[str]:
        return self.names

    def values(self) -> Tensor:
        return self.row_N

    def lengths(self) -> Tensor:
        return self.length_FB

    def weights(self) -> Tensor | None:
        return self.weights_N


@dataclass(frozen=True)
class Keyed:
    """A KeyedJaggedTensor as arrays. Lookups are ordered by feature; those of feature ``f`` begin at ``first_F1[f]``. Where keys
    have batches of their own, each has empty bags at its end, up to the size of the largest batch."""

    batches: KeyedBatches
    ids_N: NDArray[np.int64]
    length_FB: NDArray[np.int64]
    first_F1: NDArray[np.int64]
    one_hot: bool
    """Whether every bag holds exactly one id."""
    weights_N: Tensor | None

    @staticmethod
    def of(given: Any, weighted: bool) -> Keyed:
        """Read an object with TorchRec's methods. Raises TypeError where they are missing, ValueError where parts disagree."""
        batches = KeyedBatches.of(given)
        lengths = as_ids(batches.lengths).reshape(-1)
        length_FB = _by_key(lengths if hasattr(given, "lengths") else np.diff(lengths), batches.bags_F)
        ids_N = as_ids(given.values())
        first_F1 = np.empty(len(length_FB) + 1, dtype=np.int64)
        shortest, longest = find_features(length_FB, first_F1)
        if shortest < 0 or first_F1[-1] > len(ids_N):
            raise ValueError(f"lengths must sum to at most the number of values, {len(ids_N)}, got {length_FB.sum()}")
        return Keyed(
            batches, ids_N, length_FB, first_F1, shortest == longest == 1, given.weights() if weighted else None
        )

    def places(self, features: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of features. Raises ValueError where one is missing."""
        return self.batches.places(features)

    def of_features(self, features: NDArray[np.int64]) -> Jagged:
        """Return the bags of some features, ordered by sample."""
        length_L = self.length_FB[features].T.reshape(-1)
        start_FB = np.cumsum(self.length_FB).reshape(self.length_FB.shape) - self.length_FB
        where_N = expand_ranges(start_FB[features].T.reshape(-1), length_L)
        weights_N = None
        if self.weights_N is not None:
            weights_N = self.weights_N[torch.from_numpy(where_N).to(self.weights_N.device)]
        return Jagged(self.ids_N[where_N], np.concatenate([[0], np.cumsum(length_L)]), weights_N)


def _by_key(lengths: NDArray[np.int64], bags_F: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the lengths of bags by key (F, largest batch), filled up with empty bags."""
    if len(set(bags_F)) == 1:
        return lengths.reshape(len(bags_F), -1)
    length_FB = np.zeros((len(bags_F), max(bags_F)), dtype=np.int64)
    for length_B, own in zip(length_FB, np.split(lengths, np.cumsum(bags_F)[:-1]), strict=True):
        length_B[: len(own)] = own
    return length_FB
