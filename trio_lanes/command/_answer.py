"""The answer of a command: a JSON document, and the same as tables and lines of text."""

from __future__ import annotations

import enum
import json
import math
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, final

import attrs

from .. import RateLimit
from .._config.exact import Amount
from ._exits import DONE


@final
@attrs.frozen
class Table:
    """Rows of text under headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()
    """The columns that are aligned to the right."""


@final
@attrs.frozen
class Answer:
    """The answer of a command."""

    document: Any
    """Attrs classes, mappings and sequences of JSON values."""
    shown: Sequence[Table | str] = ()
    """Tables and lines of text."""
    code: int = DONE


def to_json(document: Any, *, encoding: str = "utf-8") -> str:
    """Return a document as indented JSON, escaped if the encoding needs that. Infinity is null."""
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False)
    # unprintable characters are escaped; a line feed here is JSON's own
    text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(_plain(document), indent=2)
    return text


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        value = attrs.asdict(value, recurse=False)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


MAX_LINE: Final = 80
"""Characters of an error that a table shows."""


def shortened(text: str) -> str:
    """Return a text as one line of at most `MAX_LINE` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 1]}…"


TEXT_SHOWN: Final = 500
"""Characters of a payload, a result, an event or the like that are shown; JSON has all."""


def cut(text: str) -> str:
    """Return the beginning of a text that may be long."""
    if len(text) <= TEXT_SHOWN:
        return text
    return f"{text[:TEXT_SHOWN]}… ({len(text):,} characters; --json shows all)"


def rate_text(limit: RateLimit) -> str:
    """Format a rate limit, as `trio-lanes limit --rate` takes it."""
    options = [
        f"{name}={getattr(limit, name)}"
        for name, usual in (("unit", "requests"), ("burst", None), ("timezone", "UTC"))
        if getattr(limit, name) != usual
    ]
    if limit.algorithm == "sliding":
        options.append("algorithm=sliding")
    amount = f"{limit.limit:g}"
    if isinstance(limit.limit, Decimal):
        amount = f"{limit.limit:f}"
        amount += "" if "." in amount else ".0"  # by the point it is read as a Decimal
    per = limit.per if isinstance(limit.per, str) else f"{limit.per:g}"
    return ",".join([f"{amount}/{per}", *options])


def number(value: Amount) -> str:
    """Format a count or a limit."""
    return "∞" if value == math.inf else f"{value:,}"


def moment(when: float) -> str:
    """Format a Unix time as local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OSError, OverflowError, ValueError):  # a year beyond the machine's calendar
        return "the end of time"


def counted(count: int, what: str) -> str:
    """Format a count with a noun: ``1 job``, ``2 jobs``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
