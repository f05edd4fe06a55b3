"""Weighted shares: which class of owners is served next.

A class has the owners of one entry of ``weights``. Within a class the owners take turns. Between
classes, each is *owed* what its share of all services was, less the services that it had: its
share is its weight times its owners that have work, over the sum of that of all classes. Served is,
of the classes that would be owed something after this service, the one that would first be owed a
whole service. That is "earliest pseudo-deadline first" (Baruah, Cohen, Plaxton and Varvel,
*Proportionate progress*, 1996): while the same owners have work, each class is owed less than one
service, and less than one service ahead of its share. The owners of a class take turns, so the same
holds for each owner. A class without work is forgotten with what it is owed.

The stores of durable lanes choose by the same functions, and by the same in Lua: the order of the
sums is that of the classes' names, so that the results are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from .names import template_of

UNLISTED_CLASS: Final = ""
"""The class of the owners that no entry of the weights matches; its weight is 1."""


def weight_class(weights: Mapping[str, float], owner: Hashable) -> str:
    """Return the entry of ``weights`` that an owner has: its name, or the longest template of it.

    An owner that is no text is matched by ``"*"`` alone.
    """
    name = owner if isinstance(owner, str) else ""
    return name if name in weights else template_of(name, weights) or UNLISTED_CLASS


def next_class(owed: Mapping[str, float], pulls: Mapping[str, float]) -> str:
    """Return the class that is served next.

    Args:
      owed: by class, the services that it is owed; 0 unless it is there.
      pulls: by class with work, its weight times its owners with work.
    """
    total = _total(pulls)
    ahead = {name: owed.get(name, 0.0) * total / pulls[name] for name in sorted(pulls)}  # services
    least = min(0.0, max(ahead.values()))  # else no class would be owed anything
    able = [name for name, services in ahead.items() if services + 1 > least]
    return min(able, key=lambda name: total / pulls[name] - ahead[name])


def _total(pulls: Mapping[str, float]) -> float:
    total = 0.0
    for name in sorted(pulls):  # not `sum`, which adds up floats in another way since Python 3.12
        total += pulls[name]
    return total


def note_served(owed: dict[str, float], pulls: Mapping[str, float], served: str) -> None:
    """Change what the classes are owed, since the class ``served`` was served."""
    total = _total(pulls)
    for name in pulls:
        owed[name] = owed.get(name, 0.0) + pulls[name] / total
    owed[served] -= 1.0
