"""`WeakValues`: a dictionary by number that does not keep its values alive.

`weakref.WeakValueDictionary` makes a reference with a callback for each value, which takes as long
as to make the value. Here the entry of a value that is gone stays until the entries are twice as
many as the values were at the last look.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar, final
from weakref import ref

V = TypeVar("V")

FEWEST: Final = 1_000
"""With fewer entries there is no look for values that are gone."""


@final
class WeakValues(Generic[V]):
    """The values that something else refers to, by number. For one thread at a time."""

    __slots__ = ("_most", "_references")

    def __init__(self) -> None:
        self._references: dict[int, ref[V]] = {}
        self._most = FEWEST

    def __len__(self) -> int:
        """Return the number of entries, also of values that are gone."""
        return len(self._references)

    def get(self, key: int) -> V | None:
        """Return the value of a key; None: there is none, or it is gone."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def put(self, key: int, value: V) -> None:
        """Set the value of a key."""
        self._references[key] = ref(value)
        if len(self._references) > self._most:
            there = {key: one for key, one in self._references.items() if one() is not None}
            self._references = there
            self._most = max(FEWEST, 2 * len(there))

    def drop(self, key: int) -> None:
        """Remove the entry of a key, if there is one."""
        self._references.pop(key, None)

    def clear(self) -> None:
        """Remove all entries."""
        self._references.clear()
