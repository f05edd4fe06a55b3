"""JSON text of payloads, results and errors: encoding, decoding, limits of size."""

from __future__ import annotations

import json
import json.encoder
import math
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

from .._contract.errors import PayloadError
from .._contract.protocol import EVENT_BYTES

LONGEST_TRACEBACK: Final = 16_000
LONGEST_MESSAGE: Final = 4_000
LONGEST_LINE: Final = 300

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER: Final = json.JSONDecoder()


_markers: Final[dict[int, object]] = {}
"""The objects that the encoder in C is inside of: it refuses an object that contains itself."""


def _encoder_in_c() -> Callable[[object, int], Iterable[str]]:
    """Return the part in C of `_ENCODER`.

    `json.JSONEncoder` makes it anew for each text, which takes longer than to encode a short one.
    Its arguments are not documented: if it does not take these, `_ENCODER` does the work.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    try:
        encoder: Callable[[object, int], Iterable[str]] = make(
            _markers,
            _ENCODER.default,
            json.encoder.encode_basestring,
            None,
            _ENCODER.key_separator,
            _ENCODER.item_separator,
            _ENCODER.sort_keys,
            _ENCODER.skipkeys,
            _ENCODER.allow_nan,
        )
    except TypeError:
        return lambda value, _: (_ENCODER.encode(value),)
    return encoder


_pieces: Final = _encoder_in_c()


def _text_of(value: object) -> str:
    """Return the JSON text of a value. A value that is refused is encoded twice.

    Two calls at the same time, in two threads or one inside of the other, have the same markers. So
    only the second encoding, which has its own, can tell that a value is refused.
    """
    try:
        return "".join(_pieces(value, 0))
    except Exception:
        pass
    finally:
        _markers.clear()  # a value that is refused leaves its own
    return _ENCODER.encode(value)


def encode(what: str, value: object, max_bytes: float) -> str:
    """Return the JSON text of ``value``.

    Raises:
      PayloadError: if ``value`` is not JSON, or larger than ``max_bytes``.
    """
    try:
        text = _text_of(value)
        size = len(text) if text.isascii() else len(text.encode())
    except Exception as error:  # the methods of a mapping may raise anything; or MemoryError
        raise PayloadError(f"{what} is not JSON: {_message(error)}") from None
    if size > max_bytes:
        raise PayloadError(
            f"{what} has {size} bytes of JSON, and the store's max_payload is {max_bytes}"
        )
    return text


def small(what: str, value: object) -> str:
    """Return the JSON text of an event or a message.

    Raises:
      PayloadError: if ``value`` is not JSON, or larger than `EVENT_BYTES`.
    """
    text = encode(what, value, math.inf)
    size = len(text.encode())
    if size > EVENT_BYTES:
        raise PayloadError(f"{what} has {size} bytes of JSON, more than {EVENT_BYTES}")
    return text


def decode(text: str) -> Any:
    """Return the value of a JSON text."""
    try:
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    except ValueError:
        pass
    return _DECODER.decode(text)  # white space around the value, or an error


def _said(say: Callable[[], str]) -> str:
    try:
        return say()
    except Exception:
        return "(its message cannot be read)"


def _message(error: BaseException) -> str:
    # an error whose message cannot be read must not hide the error itself
    return _said(lambda: str(error) or type(error).__name__)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and of the groups in it, in order; else the error alone."""
    found: list[BaseException] = []
    to_do = [error]
    while to_do:
        one = to_do.pop()
        if isinstance(one, BaseExceptionGroup):
            to_do.extend(reversed(one.exceptions))
        else:
            found.append(one)
    return found


def encode_error(error: BaseException) -> str:
    """Return JSON text of an exception: its type, its message, the end of its traceback.

    A group with a single exception, as nurseries raise it, gives the type and message of that
    exception; the message of another group lists its exceptions.
    """
    kind, message = _type_and_message(error)
    text = _said(lambda: "".join(traceback.format_exception(error)))
    described = {"type": kind, "message": message, "traceback": text[-LONGEST_TRACEBACK:]}
    return json.dumps(described)  # escapes characters that UTF-8 cannot encode


def error_line(error: BaseException) -> str:
    """Return the type and the message of an exception in one line, which UTF-8 can encode."""
    kind, message = _type_and_message(error)
    line = " ".join(f"{kind}: {message}".split())[:LONGEST_LINE]
    return line.encode(errors="backslashreplace").decode()


def _type_and_message(error: BaseException) -> tuple[str, str]:
    inner = leaves(error)
    shown = inner[0] if len(inner) == 1 else error
    message = _said(lambda: str(shown))
    if len(inner) > 1:
        message += ": " + "; ".join(f"{_type_name(one)}: {_message(one)}" for one in inner)
    return _type_name(shown), message[:LONGEST_MESSAGE]
