"""The hash of texts beside its plain twin, and both beside published values."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.kernels.hash_texts import hash_texts
from tests.kernels.reference.hash_texts import hash_text


def hashed(texts: list[bytes]) -> list[int]:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)])
    hash_U = np.zeros(len(texts), np.uint64)
    hash_texts(np.frombuffer(b"".join(texts), np.uint8), offsets, hash_U)
    return [int(value) for value in hash_U]


def sanity_bytes(size: int) -> bytes:
    """The bytes on which xxHash's own sanity test works."""
    state, made = 2654435761, bytearray()
    for _ in range(size):
        made.append(state >> 56)
        state = state * 11400714785074694797 % 2**64
    return bytes(made)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (sanity_bytes(1), 0xE934A84ADB052768),
        (sanity_bytes(14), 0x8282DCC4994E35C8),
        (sanity_bytes(222), 0xB641AE8CB691C174),
    ],
)
def test_hashes_are_those_that_xxhash_publishes(text: bytes, value: int) -> None:
    assert hash_text(text) == value
    assert hashed([b"before", text, b"after"])[1] == value


def test_texts_of_every_length_have_the_hash_of_the_twin() -> None:
    random = np.random.default_rng(1)
    texts = [random.bytes(size) for size in range(140)]
    assert hashed(texts) == [hash_text(text) for text in texts]
