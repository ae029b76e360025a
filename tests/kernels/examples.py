"""Drawn examples of a test: few in `make test`, more in `make check`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def few_or_many(few: int, many: int, **drawn: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a check of drawn values a test with so many examples; its other parameters are fixtures and axes as ever."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        others = [one for one in inspect.signature(check).parameters.values() if one.name not in drawn]

        def test(examples: int, **given_: Any) -> None:
            def one(**values: Any) -> None:
                check(**given_, **values)

            settings(max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck])(given(**drawn)(one))()

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        examples = inspect.Parameter("examples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([examples, *others])  # type: ignore[attr-defined]
        sizes = [few, pytest.param(many, marks=pytest.mark.slow)]
        return pytest.mark.parametrize("examples", sizes, ids="{} examples".format)(test)

    return decorate
