"""JSON at the border: what is accepted, how large, and what an exception becomes."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any, Final

from ._errors import PayloadError

LONGEST_TRACEBACK: Final = 16_000
LONGEST_MESSAGE: Final = 4_000

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(what: str, value: object, max_bytes: float) -> str:
    """The JSON text of ``value``.

    Raises:
      PayloadError: if it is no JSON, or larger than that.
    """
    try:
        text = _ENCODER.encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{what} is not JSON: {error}") from None
    if size > max_bytes:
        raise PayloadError(f"{what} has {size} bytes of JSON, and may have {max_bytes}")
    return text


def decode(text: str) -> Any:
    """What `encode` was given, as JSON sees it."""
    return json.loads(text)


def _said(say: Callable[[], str]) -> str:
    try:
        return say()
    except Exception:
        return "(it cannot say)"


def encode_error(error: BaseException) -> str:
    """What is kept of an exception: its type, what it said, and the end of its traceback."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    # an error that cannot be told is no reason not to tell of any other
    message = _said(lambda: str(error))
    text = _said(lambda: "".join(traceback.format_exception(error)))
    told = {
        "type": name,
        "message": message[:LONGEST_MESSAGE],
        "traceback": text[-LONGEST_TRACEBACK:],
    }
    return json.dumps(told)  # escapes what no encoding has
