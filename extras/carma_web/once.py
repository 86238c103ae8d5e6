"""What a page finds out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class once(Generic[T]):
    """As functools.cached_property, which up to Python 3.11 lets only one thread at a time find it
    for any object: while carmad is slow, each page would wait for all pages before it."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, page: Any, owner: type) -> T:
        found = page.__dict__[self._name] = self._find(page)
        return found
