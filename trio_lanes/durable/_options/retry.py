"""Retries: the policy of a job, and the exceptions by which a handler overrides it."""

from __future__ import annotations

import json
import logging
import math
import random
from typing import Any, Final, Literal

import attrs

from ..._config import check as _check
from .json_text import leaves

logger: Final = logging.getLogger("trio_lanes.durable")


class Retry(Exception):
    """Raised by a handler, or below a nursery of it: attempt this job again after some seconds.

    Args:
      after: the seconds.
      counts: whether the run counts as an attempt; False suits an answer like HTTP 429.
      order: ``"keep"`` or ``"requeue"``, in place of the order of the job's `RetryPolicy`.
    """

    def __init__(
        self, after: float, counts: bool = True, order: Literal["keep", "requeue"] | None = None
    ) -> None:
        self.after: float = _check.finite_seconds("after", after)
        self.counts: bool = _check.boolean("counts", counts)
        if order is not None:
            _order(self, None, order)
        self.order: Literal["keep", "requeue"] | None = order
        super().__init__(after, counts, order)

    def __str__(self) -> str:
        return f"retry in {self.after} s"


class NoRetry(Exception):
    """Raised by a handler, or below a nursery of it: this job has failed; do not retry it."""


def _backoff(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"backoff must be two numbers of seconds (first, most), not {value!r}")
    first, most = (_check.finite_seconds("backoff", seconds) for seconds in value)
    if first > most:
        raise ValueError(f"backoff must not begin above its maximum, got {value!r}")


def _jitter(instance: object, attribute: Any, value: Any) -> None:
    if _check.finite_seconds("jitter", value) > 1:
        raise ValueError(f"jitter must be a fraction from 0 to 1, got {value!r}")


def _order(instance: object, attribute: Any, value: Any) -> None:
    if value not in ("keep", "requeue"):
        raise ValueError(f"order must be 'keep' or 'requeue', not {value!r}")


def _types(instance: object, attribute: Any, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, type) or not issubclass(one, Exception):
            raise TypeError(f"retry_on must be a type of Exception or a tuple of them, not {one!r}")


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """The number of attempts of a job whose handler raises, and the time between them.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    max_attempts: int | float = attrs.field(
        default=3, validator=_check.field(_check.positive_count)
    )
    """How many attempts may fail; then the job is dead."""
    backoff: tuple[float, float] = attrs.field(default=(1.0, 60.0), validator=_backoff)
    """Seconds before the second attempt, which double with each attempt, and their maximum."""
    jitter: float = attrs.field(default=0.2, validator=_jitter)
    """The fraction by which the seconds are made shorter or longer at random."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = attrs.field(
        default=Exception, validator=_types
    )
    """The exceptions that are retried; any other fails the job at once. A timeout raises
    `JobTimeoutError`. A group of exceptions is retried if each exception in it is."""
    order: Literal["keep", "requeue"] = attrs.field(default="keep", validator=_order)
    """``"keep"``: between attempts the job keeps its place and blocks its session. ``"requeue"``:
    it gives up its place, and joins the tail of its session when it is due."""

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt, the first being 1."""
        first, most = self.backoff
        # 2.0 ** 1024 is an OverflowError, and 64 doublings exceed any maximum
        seconds = min(most, first * 2.0 ** min(attempt - 1, 64))
        return seconds * (1 + self.jitter * random.uniform(-1, 1))

    def to_json(self) -> str:
        """Return the policy as a job carries it: all but the types, which are code.

        Raises:
          ValueError: if ``retry_on`` was given.
        """
        if self.retry_on is not Exception:
            raise ValueError(
                "retry_on cannot travel with a job: give it to open_durable_lanes, "
                f"or leave it out, got {self.retry_on!r}"
            )
        most = None if self.max_attempts == math.inf else self.max_attempts
        return json.dumps([most, *self.backoff, self.jitter, self.order])

    def with_json(self, text: str) -> RetryPolicy:
        """Return a policy with this policy's types and the values of a text from `to_json`."""
        most, first, last, jitter, order = json.loads(text)
        return attrs.evolve(
            self,
            max_attempts=math.inf if most is None else most,
            backoff=(first, last),
            jitter=jitter,
            order=order,
        )


def again(
    policy: RetryPolicy, error: BaseException, attempt: int
) -> tuple[float, bool, bool] | None:
    """Return (seconds, whether the attempt counts, whether the job gives up its place).

    The seconds are the time until the next attempt of a job that raised ``error``.
    None: it is not retried. A nursery raises a group, so each exception in a group is examined: the
    job is retried if all of them allow it, after the longest of their delays.
    """
    types = policy.retry_on if isinstance(policy.retry_on, tuple) else (policy.retry_on,)
    # if a type of groups is retried, so is each exception in such a group
    of_group = isinstance(error, tuple(one for one in types if issubclass(one, ExceptionGroup)))
    answers: list[tuple[float, bool, str | None]] = []
    for one in leaves(error):
        if isinstance(one, Retry):
            answers.append(_asked(one) or (policy.delay(attempt), True, None))
        elif isinstance(one, NoRetry) or not (of_group or isinstance(one, types)):
            return None
        else:
            answers.append((policy.delay(attempt), True, None))
    return (
        max(delay for delay, _, _ in answers),
        any(counts for _, counts, _ in answers),
        any((order or policy.order) == "requeue" for _, _, order in answers),
    )


def _asked(error: Retry) -> tuple[float, bool, str | None] | None:
    """Return the delay in ``error``; None if its class did not call the constructor of `Retry`."""
    try:
        after = _check.finite_seconds("after", getattr(error, "after", None))
        counts = _check.boolean("counts", getattr(error, "counts", None))
        return after, counts, getattr(error, "order", None)
    except (TypeError, ValueError) as bad:
        logger.error(
            "a handler raised %s, which lacks the attributes of Retry (%s): the job is retried by"
            " its policy; call super().__init__(after, counts) in that class",
            type(error).__qualname__,
            bad,
        )
        return None
