"""Tensors without memory of their own, whose values lie in the rows of a table: its weight, and views of the weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.loop.operations import changed_arguments, flat, map_values
from adaptive_rec.modules.loop.row_gradient import RowGradient

aten = torch.ops.aten
SHAPE_ONLY = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.rand_like.default, aten.randn_like.default,
    aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty_strided.default,
}  # fmt: skip
"""Operations that need the shape, the type and the device of a tensor only."""


class Override(NamedTuple):
    """What is called for a function of torch. It may return `NotImplemented`: torch's own function is then carried out on copies
    of the rows."""

    function: Callable[..., Any]
    place: int = 0
    """Place of the tensor among the arguments."""
    of_rows: bool = False
    """Whether it is for tables in tiers only: not for views, nor for an alias that kept former values."""


_GRAD: Any = Tensor.grad
STAND_INS: dict[Any, Override] = {}
"""Overrides of functions of torch (`weight_functions.py`)."""


def no_memory(given: Any, what: str) -> ConfigError:
    """Return the error of a function that asks for the memory of a weight's values."""
    return ConfigError(
        f"{what} must not be used on the weight of table {given.name}, as its rows are in two tiers and it has no memory of "
        "its own: use a copy (.clone()), or adaptive_rec.unwrap the model",
        faq="memory-of-a-weight",
    )


def cannot_be(how: str) -> ConfigError:
    """Return the error of a way to compile that a model cannot go."""
    return ConfigError(f"{how} must not be given a model with tables in two tiers: adaptive_rec.unwrap it, or use torch.compile")


class Rows(Protocol):
    """The rows of a table (R, D), as a weight reads and writes them."""

    shape: torch.Size
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The table's name."""
        ...

    @property
    def place(self) -> int:
        """A number that tensors have in common whose values are the same ones."""
        ...

    def whole(self) -> Tensor:
        """Return a copy of all rows."""
        ...

    def rows(self, row_N: NDArray[np.int64]) -> Tensor:
        """Return copies of some rows."""
        ...

    def set(self, values: Tensor) -> None:
        """Set all rows."""
        ...

    def set_rows(self, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows."""
        ...


class TieredTensor(Tensor):
    """A tensor whose values are read from the rows of a table, and written to them, by each operation. Its strides and offset are
    those that it would have in a table in memory, so a view of it has them too.

    An operation gets copies of the rows that it concerns, as ordinary tensors. What it changes, by torch's description of it (its
    first argument, ``out=``, or tensors of a list), is written back. An operation that gives a view gives another tensor of this
    kind. The memory itself cannot be had: functions that ask for it raise an error.
    """

    source: Rows
    in_tiers = False
    """Whether its values are those of a whole table in tiers."""

    @property
    def name(self) -> str:
        """The table's name."""
        return self.source.name

    @property
    def grad(self) -> Tensor | None:
        """Torch's ``grad``, which optimizers read and set for each weight in each step, without a turn through
        `__torch_function__`."""
        with torch._C.DisableTorchFunctionSubclass():
            found: Tensor | None = _GRAD.__get__(self)
            return found

    @grad.setter
    def grad(self, given: Tensor | None) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            _GRAD.__set__(self, given)

    @grad.deleter
    def grad(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            _GRAD.__delete__(self)

    @classmethod
    def like(cls, given: Tensor, device: torch.device, requires_grad: bool = False) -> Self:
        """Make a tensor with the shape, strides, offset and type of another one."""
        with torch.inference_mode(False):  # a view shares the count of writes with the weight
            made = torch.Tensor._make_wrapper_subclass(
                cls, given.shape, strides=given.stride(), storage_offset=int(given.storage_offset()), dtype=given.dtype,
                device=device, requires_grad=requires_grad,
            )  # fmt: skip
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made

    def viewed(self, like: Tensor) -> TieredTensor:
        """Return a view of its rows with given shape, strides, offset and type."""
        made = TieredTensor.like(like, self.device)
        made.source = self.shared()
        return made

    def shared(self) -> Rows:
        """Return the rows, as views of it read them."""
        return self.source

    def alias(self) -> TieredTensor:
        """Return a tensor of the same values, as `detach` does."""
        return self.viewed(self)

    def whole(self) -> Tensor:
        """Return a copy of its values, as an ordinary tensor."""
        return _Copies([self]).of(self).contiguous()

    @classmethod
    @torch.compiler.disable
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch._C._is_tracing():
            raise cannot_be("torch.jit.trace")
        kwargs = kwargs or {}
        override = STAND_INS.get(func)
        if override is not None:
            given = args[override.place] if len(args) > override.place else kwargs.get("input")
            if isinstance(given, TieredTensor) and (given.in_tiers or not override.of_rows):
                found = override.function(*args, **kwargs)
                if found is not NotImplemented:
                    return found
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, TieredTensor):
            if func in (aten.detach.default, aten.alias.default):
                return first.alias()
            if func is aten.full_like.default:
                return _full_like(first, *args[1:], **kwargs)
            if func in SHAPE_ONLY:
                kwargs["device"] = kwargs.get("device") or first.device
                return func(_without_memory(first), *args[1:], **kwargs)
            if func.is_view and (found := _view(func, first, *args[1:], **kwargs)) is not NotImplemented:
                return found
        if (found := func.decompose(*args, **kwargs)) is not NotImplemented:  # under torch.inference_mode
            return found
        return _on_copies(func, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = self.plain()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)

    def plain(self) -> Tensor:
        """Return a copy as an ordinary tensor."""
        return self.whole()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.whole())


def _full_like(
    given: TieredTensor, value: Any, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: Any
) -> Tensor:
    """Return a tensor of one value, such as Adagrad's first sums. Zeros on a CPU take no memory until they are written to."""
    dtype, device = dtype or given.dtype, torch.device(device or given.device)
    if device.type != "cpu":  # there may be no room for a table of the host's
        return torch.full((), value, dtype=dtype, device=device).expand(given.shape)
    if value:
        return torch.full(given.shape, value, dtype=dtype)
    zeros_B = np.zeros(given.numel() * dtype.itemsize, dtype=np.uint8)  # pages that the system gives at the first write
    return torch.from_numpy(zeros_B).view(dtype).view(given.shape)


class _Copies:
    """Ordinary copies of the rows that an operation concerns. Tensors of one table share them, as they share memory in torch."""

    def __init__(self, given: Sequence[TieredTensor]) -> None:
        spans: dict[int, tuple[Rows, int, int]] = {}
        for one in given:
            low, high = _span(one)
            _, first, end = spans.get(one.source.place, (None, low, high))
            spans[one.source.place] = one.source, min(low, first), max(high, end)
        self._spans = spans
        self._memory = {place: _read(*span) for place, span in spans.items()}

    def of(self, one: TieredTensor) -> Tensor:
        """Return a tensor as a view of these copies."""
        source, low, _ = self._spans[one.source.place]
        memory = self._memory[one.source.place].view(-1).view(one.dtype)
        return memory.as_strided(one.shape, one.stride(), int(one.storage_offset()) - low * source.shape[1])

    def write(self, changed: Sequence[TieredTensor]) -> None:
        """Write the rows of some tensors back."""
        for place in {one.source.place for one in changed}:
            source, low, high = self._spans[place]
            if high - low == source.shape[0]:
                source.set(self._memory[place])
            elif high > low:
                source.set_rows(np.arange(low, high), self._memory[place])


def _span(one: TieredTensor) -> tuple[int, int]:
    """Return the first row and the end of the rows that a tensor has values of."""
    first, width = int(one.storage_offset()), one.source.shape[1]
    last = first + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
    return (first // width, last // width + 1) if one.numel() else (0, 0)


def _read(source: Rows, low: int, high: int) -> Tensor:
    return source.whole() if high - low == source.shape[0] else source.rows(np.arange(low, high))


def _without_memory(one: TieredTensor) -> Tensor:
    """Return a tensor of the same shape, strides and offset on the device meta."""
    rows, dim = one.source.shape
    memory = torch.empty(rows * dim, dtype=one.dtype, device="meta")
    return memory.as_strided(one.shape, one.stride(), int(one.storage_offset()))


def _view(func: Any, given: TieredTensor, *args: Any, **kwargs: Any) -> Any:
    """Return what an operation gives a view of, or `NotImplemented` where it gives a copy."""
    memory = _without_memory(given)
    found = func(memory, *args, **kwargs)
    several = isinstance(found, (list, tuple))
    views = []
    for one in found if several else [found]:
        if one.untyped_storage()._cdata != memory.untyped_storage()._cdata or one.is_neg():
            return NotImplemented
        if one.element_size() != given.element_size():
            raise NotImplementedError(
                f"a view of the weight of table {given.name} must have elements of {given.element_size()} bytes, got {one.dtype}"
            )
        views.append(given.viewed(one))
    return views if several else views[0]


def _on_copies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out an operation on copies of the rows, and write back what it changed."""
    if func is aten.copy_.default and is_whole(args[0]):  # what is overwritten need not be read
        given = args[1]
        args[0].source.set((_dense(given) if not isinstance(given, TieredTensor) else given.whole()).expand(args[0].shape))
        return args[0]
    tensors = list(_tensors([*args, *kwargs.values()]))
    copies = _Copies(tensors)
    read = {id(one): copies.of(one) for one in tensors}

    def plain(value: Any) -> Any:
        return read[id(value)] if isinstance(value, TieredTensor) else _dense(value)

    changed = list(_changed(func, args, kwargs))
    if func.overloadpacket is aten.set_:
        raise no_memory(tensors[0], "set_")
    result = func(*map_values(args, plain), **{name: map_values(value, plain) for name, value in kwargs.items()})
    for one in changed:
        if (copy := read[id(one)]).shape != one.shape or copy.stride() != one.stride():
            raise NotImplementedError(
                f"the weight of table {one.name} must keep its shape, as its rows are in two tiers: {func} on "
                f"{tuple(one.shape)} would make {tuple(copy.shape)}; it was left as it was"
            )
    copies.write(changed)
    given_back = {id(read[id(one)]): one for one in changed}

    return map_values(result, lambda value: given_back.get(id(value), value))


def _changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[TieredTensor]:
    """Yield the tensors that an operation changes, by torch's description of it."""
    for value in changed_arguments(func, args, kwargs):
        for one in _tensors([value]):
            if value is not one:  # torch counts these writes of ordinary tensors only
                torch.autograd.graph.increment_version(one)
            yield one


def _tensors(values: Sequence[Any]) -> Iterator[TieredTensor]:
    return (value for value in flat(values) if isinstance(value, TieredTensor))


def _geometry(one: Any) -> Any:
    return one.shape, one.stride(), one.storage_offset(), one.dtype


def is_whole(one: Any) -> bool:
    """Whether a tensor has all values of a table, in their order."""
    return isinstance(one, TieredTensor) and _geometry(one) == _geometry(one.source)


def _dense(value: Any) -> Any:
    return value.dense() if isinstance(value, RowGradient) else value


def not_sent(given: TieredTensor) -> Any:
    """Refuse to be sent to another process. A tensor of torch would get there in shared memory."""
    raise ConfigError(
        f"the weight of table {given.name} must not be sent to another process (started with it, or through a queue or pipe): "
        "rows are not in shared memory, and what is trained there would be lost: send copy.deepcopy(model), which is an ordinary "
        "model, or a copy of the weight (.detach().clone())"
    )


ForkingPickler.register(TieredTensor, not_sent)
