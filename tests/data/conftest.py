"""Where the tests find real click data, which is not part of the repository."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

DATA_FOLDER = Path(
    os.environ.get("ADAPTIVE_REC_TEST_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data"
)


def find(name: str) -> Path:
    path = DATA_FOLDER / name
    if not path.exists():
        pytest.skip(f"no {name} in {DATA_FOLDER}; set ADAPTIVE_REC_TEST_DATA to the folder that holds it")
    return path


@pytest.fixture
def criteo_sample() -> Path:
    """137,139 rows of Criteo Kaggle."""
    return find("criteo_kaggle_sample_137k.tsv.zst")


@pytest.fixture
def criteo_terabyte_head() -> Path:
    """The first 3,000 rows of a day of Criteo Terabyte."""
    return find("day_11_first_3k_rows.tsv.zst")


@pytest.fixture
def avazu_head() -> Path:
    """The first 9,999 rows of Avazu's training file."""
    return find("avazu_head_9999.csv.zst")


@pytest.fixture
def real_file() -> Callable[[str], Path]:
    """A file of that folder by its name."""
    return find
