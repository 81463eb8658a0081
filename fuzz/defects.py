"""What a mutant is, and the ways to put one in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from random_cases import Case


@dataclass(frozen=True)
class Mutant:
    """One defect: `breaks()` puts it in place."""

    what: str
    breaks: Callable[[], None]
    threads: bool = False  # only calls from several threads show it
    like: Callable[[Case], bool] = lambda case: True  # cases that could show it
    isa: str = "portable"  # the least level whose kernels have what it breaks


def wrap(owner: Any, name: str, around: Callable) -> Callable[[], None]:
    """Replace `owner.name` by a function that is given the plain one first."""

    def breaks() -> None:
        plain = getattr(owner, name)
        setattr(owner, name, lambda *args, **keywords: around(plain, *args, **keywords))

    return breaks


def nothing(owner: Any, name: str) -> Callable[[], None]:
    """Leave out what `owner.name` does."""
    return wrap(owner, name, lambda plain, *args, **keywords: None)


def all_of(*breaks: Callable[[], None]) -> Callable[[], None]:
    """Several defects at once."""
    return lambda: [one() for one in breaks] and None
