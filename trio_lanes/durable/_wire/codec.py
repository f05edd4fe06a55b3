"""The text of messages: JSON, in which records, lists, sets and errors are marked objects.

The fields of a record are written in their order and without names: both ends of a wire run the
same version of this library. In a store, the text of an older version may have fewer fields than
the record: these have their defaults. That of a newer version may have more, which are not read.
An object ``{"": NAME, "v": VALUES}`` is a record, a list, a set, a mapping or an error; an array is
a tuple.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import attrs

from ... import Coalesce, LaneError, LaneFullError, RateLimit, UnknownLaneError
from .. import acts
from .._contract import records
from .._contract.errors import (
    BudgetSpentError,
    KeyConflictError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)
from .._contract.state import DurableState
from .._options.schedule import DurableSchedule
from .._rules.tables import LastStep

_BESIDES: Final = (Coalesce, DurableSchedule, LastStep, RateLimit)
_RECORDS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (*vars(records).values(), *acts.VERBS.values(), *_BESIDES)
    if isinstance(kind, type) and attrs.has(kind)
}
"""All that a message can name."""
_NAMES: Final = {
    kind: tuple(field.name for field in attrs.fields(kind)) for kind in _RECORDS.values()
}
"""The fields of each record."""
_ARGUMENTS: Final = {
    name: tuple(field.alias for field in attrs.fields(kind)) for name, kind in _RECORDS.items()
}
"""The same, as the arguments that make one."""
_text: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_AS_THEY_ARE: Final = frozenset((NoneType, bool, int, float, str))
"""The types whose values are the same in a text."""
_ERRORS: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind
    for kind in (
        BudgetSpentError,
        KeyConflictError,
        LaneFullError,
        StoreError,
        StoreLockedError,
        StoreUnavailableError,
        StoreVersionError,
        UnknownLaneError,
        ValueError,
    )
}


def encode(message: Any) -> str:
    """Return the text of a message."""
    return _text(_data(message))


def decode(text: str) -> Any:
    """Return the message of a text from `encode`."""
    return _read(json.loads(text))


def _data(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind in _NAMES:
        return {"": kind.__name__, "v": _all_data([getattr(value, name) for name in _NAMES[kind]])}
    if isinstance(value, tuple):
        return _all_data(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list):
        return {"": "list", "v": [_data(item) for item in value]}
    if isinstance(value, DurableState):
        return {"": "state", "v": value.value}
    if isinstance(value, Decimal):
        return {"": "decimal", "v": str(value)}
    if isinstance(value, frozenset):
        return {"": "set", "v": [_data(item) for item in value]}
    if isinstance(value, Mapping):
        return {"": "map", "v": [[_data(key), _data(item)] for key, item in value.items()]}
    if isinstance(value, Exception):
        return _error_data(value)
    raise KeyError(kind)


def _all_data(values: Iterable[Any]) -> list[Any]:
    """Return the data of some values, most of which are plain."""
    return [value if type(value) in _AS_THEY_ARE else _data(value) for value in values]


def _error_data(error: Exception) -> dict[str, Any]:
    kind = type(error)
    if _ERRORS.get(kind.__name__) is not kind:
        error = StoreError(f"the store failed: {kind.__name__}: {error}")
    unknown = isinstance(error, StoreUnavailableError) and error.unknown
    arguments = tuple(list(one) if isinstance(one, Mapping) else one for one in error.args)
    return {"": "error", "v": [type(error).__name__, _data(arguments), unknown]}


def _read_all(values: Iterable[Any]) -> list[Any]:
    return [value if type(value) in _AS_THEY_ARE else _read(value) for value in values]


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read_all(value))
    if not isinstance(value, dict):
        return value
    kind, values = value[""], value["v"]
    if kind in _RECORDS:
        arguments = _ARGUMENTS[kind]
        known = values[: len(arguments)]  # what is behind them may name what is not known here
        return _RECORDS[kind](**dict(zip(arguments, _read_all(known), strict=False)))
    if kind == "state":
        return DurableState(values)
    if kind == "decimal":
        return Decimal(values)
    if kind == "list":
        return [_read(item) for item in values]
    if kind == "set":
        return frozenset(_read(item) for item in values)
    if kind == "map":
        return {_read(key): _read(item) for key, item in values}
    if kind == "error":
        return _read_error(*values)
    raise KeyError(kind)


def _read_error(name: str, arguments: list[Any], unknown: bool) -> Exception:
    error = _ERRORS[name](*_read(arguments))
    if isinstance(error, StoreUnavailableError):
        error.unknown = unknown
    return error


def is_answer(error: Exception) -> bool:
    """Whether an error is the store's answer to the caller, and no fault of the server."""
    return isinstance(error, LaneError | ValueError)
