"""What a page is sent of any value: bounded texts and rounded numbers, as JSON can carry them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import Any, Final

import attrs

from trio_lanes import Problem

Frame = dict[str, Any]

MAX_ROWS: Final = 60


def clipped(text: Any, longest: int = 120) -> str:
    """Return ``text`` with at most ``longest`` characters, each of which JSON can carry."""
    words = str(text)
    if len(words) > longest:
        words = words[: longest - 1] + "…"
    return words.encode("utf-8", "replace").decode("utf-8")


def shown(value: Any, *names: str, longest: int = 120) -> Any:
    """Return ``value`` for the page: an object as its fields, or those of ``names``.

    Of a mapping or a sequence, it has the first `MAX_ROWS`. None is infinity, which JSON does not
    have.
    """
    if isinstance(value, str):
        return clipped(value, longest)
    if isinstance(value, float):
        return None if value == math.inf else round(value, 3)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if attrs.has(type(value)):
        names = names or tuple(field.name for field in attrs.fields(type(value)))
        return {name: shown(getattr(value, name), longest=longest) for name in names}
    if isinstance(value, Mapping):
        some = islice(value.items(), MAX_ROWS)
        return {clipped(key): shown(each, longest=longest) for key, each in some}
    if isinstance(value, Sequence):
        return [shown(each, *names, longest=longest) for each in value[:MAX_ROWS]]
    return value


def shown_problem(problem: Problem, *, stored: bool = True) -> Frame:
    """Return a problem for the page.

    Args:
      stored: whether the job that it names is one of a store.
    """
    return {**shown(problem, longest=300), "stored": stored}
