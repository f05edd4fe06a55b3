"""What submissions under one key become: one job that waits, for all of them."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Final, Literal, final

import attrs

from . import check as _check

_CHOICES: Final = {"keep": ("latest", "first"), "while_running": ("wait", "drop")}


def _key(instance: object, attribute: object, value: Any) -> None:
    if value is None:  # most likely a value that is missing: it would join what is not the same
        raise TypeError("key must not be None")
    _check.hashable("key", value)


def _choice(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    one, other = _CHOICES[attribute.name]
    if value not in (one, other):
        raise ValueError(f"{attribute.name} must be {one!r} or {other!r}, not {value!r}")


@final
@attrs.frozen
class Coalesce:
    """Let at most one job of a key wait: ``coalesce=Coalesce(key)`` in a submission.

    While a job of that key waits, a further submission makes no job: it gets the handle of that
    job, and so the result of what ran.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    key: Hashable = attrs.field(validator=_key)
    """What submissions have in common that are to be one job. Not None."""
    keep: Literal["latest", "first"] = attrs.field(
        default="latest", kw_only=True, validator=_choice
    )
    """Which of them runs: ``"latest"`` replaces what the waiting job is to run, and with which
    options; ``"first"`` leaves it as it is."""
    debounce: float = attrs.field(
        default=0.0, kw_only=True, validator=_check.field(_check.finite_seconds)
    )
    """Seconds without a further submission after which the job may start."""
    max_wait: float = attrs.field(
        default=math.inf,
        kw_only=True,
        converter=_check.or_inf,
        validator=_check.field(_check.seconds),
    )
    """Seconds since the first submission after which it may start in spite of ``debounce``; None
    and `math.inf`: no such bound. Not below ``debounce``."""
    while_running: Literal["wait", "drop"] = attrs.field(
        default="wait", kw_only=True, validator=_choice
    )
    """What a submission becomes while a job of that key runs and none waits: ``"wait"``, a job that
    waits; ``"drop"``, nothing: it gets the handle of that job, unless it was cancelled."""

    def __attrs_post_init__(self) -> None:
        if self.max_wait < self.debounce:
            raise ValueError(
                f"max_wait must not be below debounce, got {self.max_wait!r} "
                f"with debounce={self.debounce!r}"
            )
