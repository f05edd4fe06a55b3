"""The one check of names that users give: of lanes, sessions, keys, handlers, locks, logs, quotas.

It is the same for every store, and keeps what one of them could not: PostgreSQL has no character 0,
no store can write half of a surrogate pair, and an index takes no text of any length.
"""

from __future__ import annotations

from typing import Any, Final

LONGEST_NAME: Final = 1_000
"""The most characters of a name, which listings and log lines repeat."""
_SHOWN: Final = 60
"""How many characters of a name that is too long an error shows."""


def checked_name(field: str, value: Any) -> str:
    """Return a name; raise an error unless every store can keep it.

    Raises:
      TypeError: if it is not a string.
      ValueError: if it is empty, has more than `LONGEST_NAME` characters, the character 0, or half
        of a surrogate pair.
    """
    fits = type(value) is str and value.isascii() and 0 < len(value) <= LONGEST_NAME
    if fits and "\0" not in value:  # the common case, without an encoding
        return value  # type: ignore[no-any-return]  # it is a string
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {value!r}")
    if not value:
        raise ValueError(f"{field} must not be empty, got {value!r}")
    if len(value) > LONGEST_NAME:
        most, shown = f"{LONGEST_NAME:,} characters", f"{value[:_SHOWN]!r}..."
        raise ValueError(f"{field} must have at most {most}, got {len(value):,}: {shown}")
    if "\0" in value:
        raise ValueError(f"{field} must not have the character 0, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} must be text that UTF-8 can write, got {value!r}") from None
    return value
