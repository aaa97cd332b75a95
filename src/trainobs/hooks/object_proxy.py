"""An object that stands for another one: only `type` and `is` tell them apart."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

One = TypeVar("One")

_NOT_OPERATORS = frozenset(
    {
        "__class_getitem__",
        "__del__",
        "__getattribute__",
        "__getstate__",
        "__init__",
        "__init_subclass__",
        "__reduce__",
        "__subclasshook__",
    }
)
"""Special methods that are about the class, or about how an object is made and unmade."""


class ObjectProxy:
    """Stands for `trainobs_inner`, whose class, attributes and operators it has.

    Python looks operators up in the class of an object. So each class of inner objects has a class
    of stand-ins, with the operators that it has itself. Copies and pickles of a stand-in are those
    of the inner object.
    """

    __slots__ = ("__weakref__", "trainobs_inner")

    trainobs_inner: Any

    def __new__(cls, inner: object, *_: object) -> Any:
        """Of the class of stand-ins for objects like `inner`."""
        made = object.__new__(_like(cls, type(inner)))  # type: ignore[arg-type]
        object.__setattr__(made, "trainobs_inner", inner)
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """So that `isinstance` answers as for the inner object.

        What is not known for a loader is passed over in silence by those that prepare loaders:
        Accelerate would let each rank train on all of the data.
        """
        inner = self.trainobs_inner
        told: type = _both(type(inner), inner.__class__)  # type: ignore[arg-type]
        return told

    def __getattr__(self, name: str) -> Any:
        """All attributes are the inner object's."""
        return getattr(self.trainobs_inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Likewise."""
        setattr(self.trainobs_inner, name, value)

    def __delattr__(self, name: str) -> None:
        """Likewise."""
        delattr(self.trainobs_inner, name)

    def __copy__(self) -> Any:
        return copy.copy(self.trainobs_inner)

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return inner_of, (self.trainobs_inner,)


def inner_of(one: One) -> One:
    """What somebody stands for: itself, if it stands for nobody else."""
    if not issubclass(type(one), ObjectProxy):  # `isinstance` would not tell
        return one
    inner: One = one.trainobs_inner  # type: ignore[attr-defined]
    return inner


@functools.lru_cache(maxsize=64)
def _both(kind: Any, told: Any) -> Any:
    """A class that is one of both for `isinstance`: some tell of another class than they have.

    What Accelerate prepares is a loader of Accelerate's, and tells that it is one of torch's.
    """
    if issubclass(kind, told):
        return kind
    try:
        return told if issubclass(told, kind) else types.new_class(kind.__name__, (kind, told))
    except TypeError:  # no class can be both
        return told


@functools.lru_cache(maxsize=64)
def _like(proxy: Any, kind: Any) -> Any:
    """A class of stand-ins for objects of a class."""
    own = {name for base in proxy.__mro__[:-1] for name in vars(base)} | _NOT_OPERATORS
    members: dict[str, Any] = {"__slots__": ()}
    for name in dir(kind):
        if name.startswith("__") and name.endswith("__") and name not in own:
            operator = getattr(kind, name, None)
            if callable(operator):
                members[name] = _forwarded(name)
            elif name == "__hash__":
                members[name] = operator
    return type(kind.__name__, (proxy,), members)


def _forwarded(name: str) -> Callable[..., Any]:
    def forwarded(self: ObjectProxy, *args: Any, **kwargs: Any) -> Any:
        inner = self.trainobs_inner
        return getattr(type(inner), name)(inner, *map(inner_of, args), **kwargs)

    return forwarded
