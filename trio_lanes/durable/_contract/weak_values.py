"""`WeakValues`: a dictionary by number that does not keep its values alive.

It is a `weakref.WeakValueDictionary` whose parts are all in C. That one calls functions in Python
when it gets a value and when a value goes, which takes longer than to make the value.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Generic, TypeVar, final
from weakref import ref

V = TypeVar("V")


@final
class WeakValues(Generic[V]):
    """The values that something else refers to, by number.

    A number has one value: set another one only when `get` has found none.
    """

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: Final[dict[int, ref[V]]] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._references)

    def get(self, key: int) -> V | None:
        """Return the value of a key; None: there is none, or it is gone."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def put(self, key: int, value: V) -> None:
        """Set the value of a key. The entry goes when the value goes."""
        self._references[key] = ref(value, partial(self._references.pop, key))

    def drop(self, key: int) -> None:
        """Remove the entry of a key, if there is one."""
        self._references.pop(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._references.clear()
