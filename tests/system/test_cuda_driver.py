"""Whether there may be a device is asked without torch."""

from __future__ import annotations

import ctypes
from importlib import metadata

import pytest

from adaptive_rec.system.cuda_driver import may_have_cuda


@pytest.mark.parametrize(
    ("build", "driver", "visible", "may_be"),
    [
        ("2.13.0", True, None, True),
        ("2.13.0", True, "0,1", True),
        ("2.13.0", True, "", False),
        ("2.13.0", True, "-1", False),
        ("2.13.0", False, None, False),
        ("2.13.0+cpu", True, None, False),
    ],
)
def test_a_device_may_be_found_where_build_driver_and_environment_permit(
    monkeypatch: pytest.MonkeyPatch, build: str, driver: bool, visible: str | None, may_be: bool
) -> None:
    def load(name: str) -> None:
        if not driver:
            raise OSError(name)

    monkeypatch.setattr(metadata, "version", lambda name: build)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert may_have_cuda() == may_be
