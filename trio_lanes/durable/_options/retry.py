"""When a job that failed is tried again: the policy, and what a handler may raise to decide."""

from __future__ import annotations

import json
import logging
import math
import random
from typing import Any, Final, Literal

import attrs

from ... import _check
from .json_text import leaves

logger: Final = logging.getLogger("trio_lanes.durable")


class Retry(Exception):
    """Raised by a handler, or below a nursery of it: try this job again after some seconds.

    Args:
      after: the seconds.
      counts: whether this was an attempt; a job that is told to come later (a 429) used none up.
    """

    def __init__(self, after: float, counts: bool = True) -> None:
        self.after: float = _check.finite_seconds("after", after)
        self.counts: bool = _check.boolean("counts", counts)
        super().__init__(after, counts)

    def __str__(self) -> str:
        return f"again in {self.after} s"


class NoRetry(Exception):
    """Raised by a handler, or below a nursery of it: this job has failed for good."""


def _attempts(instance: object, attribute: Any, value: Any) -> None:
    if _check.count("max_attempts", value) < 1:
        raise ValueError(f"max_attempts must be at least 1, got {value!r}")


def _backoff(instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"backoff must be two numbers of seconds, first and most, not {value!r}")
    first, most = (_check.finite_seconds("backoff", seconds) for seconds in value)
    if first > most:
        raise ValueError(f"backoff must not begin above its most, got {value!r}")


def _jitter(instance: object, attribute: Any, value: Any) -> None:
    if _check.finite_seconds("jitter", value) > 1:
        raise ValueError(f"jitter must be a share from 0 to 1, got {value!r}")


def _order(instance: object, attribute: Any, value: Any) -> None:
    if value not in ("keep", "requeue"):
        raise ValueError(f"order must be 'keep' or 'requeue', not {value!r}")


def _types(instance: object, attribute: Any, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, type) or not issubclass(one, Exception):
            raise TypeError(f"retry_on must be a type of Exception or a tuple of them, not {one!r}")


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often, and how soon, a job that raised is tried again.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    max_attempts: int | float = attrs.field(default=3, validator=_attempts)
    """How often its handler may be called and fail; then the job is dead."""
    backoff: tuple[float, float] = attrs.field(default=(1.0, 60.0), validator=_backoff)
    """Seconds before the second attempt, which double with each more, and their most."""
    jitter: float = attrs.field(default=0.2, validator=_jitter)
    """The share by which these are drawn shorter or longer."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = attrs.field(
        default=Exception, validator=_types
    )
    """What is tried again; anything else fails the job at once. A `JobTimeoutError` is one of
    the things that a job may fail with. Of a group of exceptions, each is asked."""
    order: Literal["keep", "requeue"] = attrs.field(default="keep", validator=_order)
    """Between attempts the job keeps its place and blocks its session; or leaves it, and goes to
    its tail when it is due."""

    def delay(self, attempt: int) -> float:
        """Seconds to wait after that attempt, the first being 1."""
        first, most = self.backoff
        # 2.0 ** 1024 is an OverflowError, and 64 doublings are beyond any most
        seconds = min(most, first * 2.0 ** min(attempt - 1, 64))
        return seconds * (1 + self.jitter * random.uniform(-1, 1))

    def to_json(self) -> str:
        """What of it travels with a job: all but the types, which are code.

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
        """This policy's types, with everything else from `to_json`."""
        most, first, last, jitter, order = json.loads(text)
        return attrs.evolve(
            self,
            max_attempts=math.inf if most is None else most,
            backoff=(first, last),
            jitter=jitter,
            order=order,
        )


def again(policy: RetryPolicy, error: BaseException, attempt: int) -> tuple[float, bool] | None:
    """When a job that raised ``error`` is tried again: (seconds, whether it was an attempt).

    None: it is not. A nursery raises a group, so each exception in a group is asked: the job is
    tried again if all of them allow it, after the longest of their delays.
    """
    types = policy.retry_on if isinstance(policy.retry_on, tuple) else (policy.retry_on,)
    # a type of groups stands for all that is in such a group
    of_group = isinstance(error, tuple(one for one in types if issubclass(one, ExceptionGroup)))
    answers: list[tuple[float, bool]] = []
    for one in leaves(error):
        if isinstance(one, Retry):
            answers.append(_asked(one) or (policy.delay(attempt), True))
        elif isinstance(one, NoRetry) or not (of_group or isinstance(one, types)):
            return None
        else:
            answers.append((policy.delay(attempt), True))
    return max(delay for delay, _ in answers), any(counts for _, counts in answers)


def _asked(error: Retry) -> tuple[float, bool] | None:
    """What ``error`` asks for; None if its class has not called the constructor of `Retry`."""
    try:
        after = _check.finite_seconds("after", getattr(error, "after", None))
        return after, _check.boolean("counts", getattr(error, "counts", None))
    except (TypeError, ValueError) as bad:
        logger.error(
            "a handler raised %s, which lacks what Retry sets (%s): the job is tried again as its"
            " policy says; call super().__init__(after, counts) in that class",
            type(error).__qualname__,
            bad,
        )
        return None
