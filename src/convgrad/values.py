"""Frozen values: what `dataclass(frozen=True)` makes of a class, with one method compiled instead of six, when used.

The first kernel that a process compiles imports some fifty such classes, of up to thirty fields, and uses half of them.
The code that dataclasses write and compile for each was two thirds of the time that importing the compiler took. The
one method takes 0.1 to 0.4 ms to compile, a tenth of a first call from the disk cache: the first values do without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")
SELDOM = 20  # values of a class that are made field by field; compiling a method takes longer than making 30 of them


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, kw_only: bool = False) -> Any:
    """Make a class one of immutable values, told apart by their fields, which `dataclasses` knows as its own.

    Bases that have fields are frozen, too. `__post_init__` is called if there is one; `dataclasses.field` says of a
    field what it does of those of a dataclass.
    """

    def made(cls: type[Any]) -> type[Any]:
        cls = dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=kw_only)(cls)
        cls._given = tuple(each.name for each in fields(cls) if each.init)
        cls._compared = attrgetter(*(each.name for each in fields(cls) if each.compare))
        cls.__init__ = _Init(cls)
        for method in (_repr, _eq, _hash, _setattr, _delattr):
            name = f"__{method.__name__[1:]}__"
            if name not in cls.__dict__:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


def replace(value: T, /, **changes: Any) -> T:
    """The value with some of its fields changed."""
    given: tuple[str, ...] = type(value)._given  # pyright: ignore[reportAttributeAccessIssue]
    return type(value)(**{name: getattr(value, name) for name in given} | changes)


class _Init:
    """In the place of a class's `__init__`, which it makes when values are made often, or somebody asks for it."""

    def __init__(self, cls: type[Any]):
        self._cls = cls
        self._seldom = SELDOM

    def __get__(self, value: Any, owner: type[Any]) -> Callable[..., None]:
        if value is None or self._seldom <= 0:
            init = self._compiled()
            return init if value is None else init.__get__(value)
        self._seldom -= 1
        return partial(self._set, value)

    def _compiled(self) -> Callable[..., None]:
        self._cls.__init__ = init = _init(self._cls)
        return init

    def _set(self, value: Any, /, *positional: Any, **by_keyword: Any) -> None:
        known, used = fields(self._cls), 0
        places = [each.name for each in known if each.init and not each.kw_only]
        given = dict(zip(places, positional, strict=False)) | by_keyword
        for each in known:
            if each.init and each.name in given:
                used += 1
                made = given[each.name]
            elif each.default_factory is not MISSING:
                made = each.default_factory()
            elif not each.init:  # __post_init__ sets it
                continue
            elif each.default is not MISSING:
                made = each.default
            else:  # nothing was given for it
                break
            object.__setattr__(value, each.name, made)
        else:
            if used == len(positional) + len(by_keyword):
                if hasattr(value, "__post_init__"):
                    value.__post_init__()
                return
        self._compiled()(value, *positional, **by_keyword)  # says what is wrong


def _init(cls: type[Any]) -> Callable[..., None]:
    """`__init__`, by which fields are set once."""
    names: dict[str, Any] = {"set_field": object.__setattr__, "missing": MISSING}
    positional, by_keyword, body = ["self"], ["*"], []
    for each in fields(cls):
        name, default, is_made = each.name, f"default_{each.name}", each.default_factory is not MISSING
        names[default] = each.default_factory if is_made else each.default
        if each.init:
            given = f"{name}=missing" if is_made else name if each.default is MISSING else f"{name}={default}"
            (by_keyword if each.kw_only else positional).append(given)
        elif not is_made:  # __post_init__ sets it
            continue
        made = f"{default}() if {name} is missing else {name}" if each.init else f"{default}()"
        body.append(f"set_field(self, {name!r}, {made if is_made else name})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = positional + (by_keyword if len(by_keyword) > 1 else [])
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body), names)
    init = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in fields(cls) if each.init} | {"return": None}
    return init


def _repr(self: Any) -> str:
    shown = (each.name for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _eq(self: Any, other: object) -> bool:
    if type(other) is not type(self):
        return NotImplemented
    compared = type(self)._compared
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(type(self)._compared(self))


def _setattr(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
