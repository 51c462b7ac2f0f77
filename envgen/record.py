"""Frozen records: what ``@dataclass(frozen=True)`` gives, without compiling six functions a class.

The standard decorator generates and compiles source text for every class, about a millisecond each; the model has some
forty classes and every command imports it. Here one generic ``__init__``, ``__eq__``, ``__hash__`` and ``__repr__``
serve them all. A type checker sees the standard decorator (see the imports of ``errors.py``); ``dataclasses.fields``
and ``replace`` work on records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

R = TypeVar("R")


class _Missing:
    """Marks a field without a default."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Key:
    """What a field declares beside its type: documentation, default, and the patterns of its texts and names."""

    __slots__ = ("default", "doc", "high", "item", "low", "names")

    def __init__(self, doc: str, default: Any, names: str, item: str, low: int | None, high: int | None) -> None:
        self.doc = doc
        self.default = default
        self.names = names
        self.item = item
        self.low = low
        self.high = high


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


EMPTY: Mapping[str, Any] = MappingProxyType({})


def key(
    doc: str,
    default: Any = MISSING,
    *,
    names: str = "",
    item: str = "",
    low: int | None = None,
    high: int | None = None,
) -> Any:
    """A documented field; without ``default`` the key is required.

    ``names`` = regular expression for the keys of a mapping; ``item`` = for each string of a list (or the string
    itself); ``low`` and ``high`` bound a number.
    """
    return Key(doc, default, names, item, low, high)


class _LazyFields:
    """``__dataclass_fields__``, computed by the standard library when somebody first asks for it."""

    def __get__(self, _instance: object, owner: type) -> dict[str, Any]:
        import dataclasses

        body: dict[str, Any] = {"__annotations__": {name: owner.__annotations__[name] for name in owner._names}}  # type: ignore[attr-defined]
        for name, default in owner._defaults.items():  # type: ignore[attr-defined]
            body[name] = dataclasses.field(default_factory=_constant(default))
        twin: Any = dataclasses.dataclass(frozen=True, kw_only=True)(type(owner.__name__, (), body))
        fields: dict[str, Any] = twin.__dataclass_fields__
        # The twin's module is ours; helpers that resolve annotations look there through sys.modules.
        owner.__dataclass_fields__ = fields  # type: ignore[attr-defined]
        return fields


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    names: tuple[str, ...] = cls._names
    values = self.__dict__
    values.update(cls._defaults)
    if args:
        if len(args) > len(names):
            raise TypeError(f"{cls.__name__}() takes {len(names)} arguments, not {len(args)}")
        for name, value in zip(names, args, strict=False):
            if name in kwargs:
                raise TypeError(f"{cls.__name__}() got {name!r} twice")
            values[name] = value
    if kwargs:
        values.update(kwargs)
    if len(values) != len(names):
        _complain(cls, names, values)
    if cls._checked:
        self.__post_init__()


def _complain(cls: type, names: tuple[str, ...], values: Iterable[str]) -> None:
    unknown = [name for name in values if name not in names]
    if unknown:
        raise TypeError(f"{cls.__name__}() got an unexpected argument {unknown[0]!r}")
    missing = [name for name in names if name not in values]
    raise TypeError(f"{cls.__name__}() misses {', '.join(missing)}")


def replace(record: R, **changes: Any) -> R:
    """A copy with other values, as ``dataclasses.replace`` makes one; that needs a twin of each class first."""
    return type(record)(**{**record.__dict__, **changes})


def _astuple(self: Any) -> tuple[Any, ...]:
    values = self.__dict__
    return tuple([values[name] for name in type(self)._names])


def _eq(self: Any, other: object) -> Any:
    return _astuple(self) == _astuple(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_astuple(self))


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={self.__dict__[n]!r}' for n in type(self)._names)})"


def _frozen(self: Any, name: str, *_value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _ordered(compare: Callable[[tuple[Any, ...], tuple[Any, ...]], bool]) -> Callable[[Any, object], Any]:
    def method(self: Any, other: object) -> Any:
        return compare(_astuple(self), _astuple(other)) if other.__class__ is self.__class__ else NotImplemented

    return method


_ORDER = {
    "__lt__": _ordered(lambda a, b: a < b),
    "__le__": _ordered(lambda a, b: a <= b),
    "__gt__": _ordered(lambda a, b: a > b),
    "__ge__": _ordered(lambda a, b: a >= b),
}


def dataclass(*, frozen: bool, order: bool = False) -> Callable[[type], type]:
    """The run-time stand-in for ``dataclasses.dataclass(frozen=True)``."""
    if not frozen:
        raise TypeError("records are always frozen")

    def decorate(cls: Any) -> Any:
        names = []
        defaults: dict[str, Any] = {}
        keys: dict[str, Key] = {}
        for name, annotation in cls.__annotations__.items():
            if annotation.startswith("ClassVar"):
                continue
            names.append(name)
            value = cls.__dict__.get(name, MISSING)
            if isinstance(value, Key):
                keys[name] = value
                value = value.default
                delattr(cls, name)
            if value is not MISSING:
                defaults[name] = value
                setattr(cls, name, value)
        cls._names = tuple(names)
        setattr(cls, "__match_args__", cls._names)  # noqa: B010  (a plain assignment is special to mypy)
        cls._defaults = defaults
        cls._keys = keys
        cls._checked = hasattr(cls, "__post_init__")
        cls.__dataclass_fields__ = _LazyFields()
        cls.__init__, cls.__eq__, cls.__hash__, cls.__repr__ = _init, _eq, _hash, _repr
        cls.__setattr__ = cls.__delattr__ = _frozen
        if order:
            for method, function in _ORDER.items():
                setattr(cls, method, function)
        return cls

    return decorate
