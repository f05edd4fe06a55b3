"""When a client may send its next request, by the headers of an HTTP response."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?|\.\d+", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(d|h|ms|m|s|us|µs|ns)", re.ASCII)
_SECONDS: Final = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
# x-ratelimit-reset-tokens, and anthropic-ratelimit-tokens-reset
_RESET: Final = re.compile(
    r"(?P<before>.*ratelimit-)reset(?P<after>-.+)|(?P<unit>.*ratelimit-.+-)reset"
)


def retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return after how many seconds the server accepts a new request; None if it does not say.

    ::

        if answer.status_code == 429:
            lanes.pause_for("main", retry_after(answer.headers) or 5)

    Headers about this response come first: ``retry-after-ms``, and then ``Retry-After``, in
    seconds (a fraction is allowed) or as an HTTP date. Without them, the headers about rate limits
    count, as those of OpenAI (``x-ratelimit-reset-tokens: 6m0s``) and Anthropic
    (``anthropic-ratelimit-tokens-reset``, a time in RFC 3339). A request needs all limits, so the
    limit that is reset last counts. A limit with a remaining amount above 0 does not block the
    request and is left out; a limit without a remaining amount counts. Successful responses have
    these headers, too: a response with none of its limits used up gives None.

    Args:
      headers: names in any case.
      now: the time that dates are compared with; by default the system's clock, which is read only
        for dates. A time without a time zone is local time.

    Returns:
      Seconds from 0 up, finite; a time that has passed is 0. A header that cannot be read, is
      negative or infinite is ignored: it is never an error.
    """
    items: Iterable[tuple[object, object]] = headers.items()
    said = {
        name.lower(): value.strip()
        for name, value in items
        if isinstance(name, str) and isinstance(value, str)
    }
    milliseconds = _number(said.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = said.get("retry-after", "")
    seconds = _number(asked)
    if seconds is None:
        seconds = _until(_http_date(asked), now)
    if seconds is not None:
        return seconds
    resets = [
        reset
        for name, value in said.items()
        if (match := _RESET.fullmatch(name))
        and (reset := _reset(match, value, said, now)) is not None
    ]
    return max(resets, default=None)


def _reset(
    name: re.Match[str], value: str, said: Mapping[str, str], now: datetime | None
) -> float | None:
    """When the limit with that ``name`` is reset, if nothing remains of it."""
    if name["unit"] is None:
        remaining = f"{name['before']}remaining{name['after']}"
        seconds = _number(value)
        if seconds is None:
            seconds = _duration(value)
    else:
        remaining = f"{name['unit']}remaining"
        seconds = None  # where this shape is a number, it is a time since 1970, and a forecast
    if _number(said.get(remaining, "")):
        return None
    return _until(_rfc3339(value), now) if seconds is None else seconds


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    number = float(text)
    return number if number < math.inf else None


def _duration(text: str) -> float | None:
    """``6m0s``, ``120ms``."""
    seconds, end = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != end:
            return None
        seconds += float(part[1]) * _SECONDS[part[2]]
        end = part.end()
    return seconds if 0 < end == len(text) and seconds < math.inf else None


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)  # HTTP knows no other


def _rfc3339(text: str) -> datetime | None:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return date if date.tzinfo else None


def _until(date: datetime | None, now: datetime | None) -> float | None:
    if date is None:
        return None
    since = (now or datetime.now(UTC)).astimezone(UTC)
    return max((date - since).total_seconds(), 0.0)
