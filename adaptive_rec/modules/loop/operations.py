"""Operations of torch as a tensor's ``__torch_dispatch__`` gets them: their arguments, and which of these they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def flat(values: Any) -> Iterator[Any]:
    """Yield values and what lists and tuples among them hold."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value changed; of a list or a tuple a copy with each of its values changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_values(one, change) for one in value)
    return change(value)


def changed_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operation changes in place, by torch's description of it: tensors, or lists of them."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(argument.name)
