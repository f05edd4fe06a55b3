"""Limits that tune themselves: how many jobs a lane runs at once, by what its jobs say.

Theory of operation. A `Tuner` is given each end of a job of its lane: when the job got its slot,
and whether it succeeded or was refused. A refusal lowers the limit at once. Successes are counted
in rounds, each as many as the limit; a round in which the lane used less than half of the limit
says nothing about it.

A job that got its slot before the last decrease says nothing about the limit of now. So a burst of
refusals is one decrease, and no window of times is mixed over it. In the start, until the first
sign of overload or a round at ``high``, the limit doubles in each round, and a refusal undoes that;
after that it grows by one (``"aimd"``), or follows the gradient of the times:

    gradient = min(1, max(1/2, long average / mean of the round))
    limit + SMOOTHING * (limit * gradient + sqrt(limit) - limit)

The square root is what may queue at the provider, or its times would never say that there is more
room. The long average follows the rounds, so that it also follows a provider that gets slower for
good; the price is that the limit creeps up until something is refused.

The time of a job that lent its slot says nothing, but its success does. So after a round without
any times the limit grows as with ``"aimd"``. Too few times for a mean are kept for the next round.

Pure: no function here reads a clock, and nothing is drawn by chance.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal, final

import attrs

from .._config import check as _check

logger: Final = logging.getLogger("trio_lanes")

_DECREASE: Final = 0.9
"""What is left of the limit after a refusal; half of it in the start. Netflix's default."""
_SMOOTHING: Final = 0.2
"""The share of a gradient's answer that is taken. Netflix's default."""
_LONG_WEIGHT: Final = 2 / (1 + 100)
"""The weight of a round in the long average: that of the last 100 rounds."""
_WARM_UP: Final = 10
"""How many rounds are averaged first. Netflix's warm-up."""
_MIN_TIMES: Final = 10
"""The fewest times in a round of the gradient: the mean of fewer is chance."""
_SLOWER: Final = 0.9
"""The gradient at which the start ends."""
_MAX_TRIED: Final = 30
_AS_EVER: Final = "jobs take as long as ever"
_REFUSALS: Final = frozenset({429, 503, 529})


def is_refusal(error: BaseException) -> bool:
    """Whether an error has an HTTP response, or the status of one, by which a server refuses.

    That is the status 429, 503 or 529, or a header Retry-After. The errors of httpx and of the
    clients of OpenAI and Anthropic have these attributes.
    """
    response = getattr(error, "response", None)
    statuses = (getattr(response, "status_code", None), getattr(error, "status_code", None))
    headers = getattr(response, "headers", None)
    named = [str(name).lower() for name in headers] if isinstance(headers, Mapping) else []
    return not _REFUSALS.isdisjoint(statuses) or "retry-after" in named


@final
@attrs.frozen
class Adaptive:
    """A concurrency that a lane learns: ``LaneConfig(concurrency=Adaptive(low=2, high=64))``.

    It begins with ``low``, or after `Lanes.configure` with the limit that the lane had, and doubles
    until something is refused or gets slower. A refusal is an error of a job that ``overloaded``
    accepts, or a call of `Job.overloaded`: the limit falls, once for all jobs that ran then: by a
    tenth; by half while it still doubled. In between, ``"aimd"`` adds one for as many successes as
    the limit; ``"gradient"`` compares how long the jobs of late have run with the long average, so
    that it also falls, before anything is refused, when the provider queues. The times of jobs that
    lend their slot or are readmitted are left out of that comparison; where there are no others,
    it grows as ``"aimd"`` does.

    If jobs that wait for jobs of the lane, directly or not, hold all that a fall leaves, waits of
    theirs end in a `LaneDeadlockError`: such a limit would never rise again.

    Every lane of a template learns for itself, and forgets when it goes. A concurrency that
    is set by hand replaces the `Adaptive`. Durable lanes refuse it: each instance would learn
    another limit.

    Sources: Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion
    Avoidance in Computer Networks" (1989), for ``"aimd"``; Brakmo and Peterson, "TCP Vegas"
    (1995), for time as a sign. The implementations that were read: ``AIMDLimit`` and
    ``Gradient2Limit`` of Netflix's concurrency-limits (the constants, the long average in place
    of a minimum, no growth of a limit that is not used), and Envoy's adaptive concurrency filter
    (the square root as headroom; times from before a change are left out).

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    low: int = attrs.field(default=1)
    """The least limit, from 1 up, with which it begins."""
    high: int = attrs.field(default=64)
    """The greatest limit."""
    by: Literal["gradient", "aimd"] = attrs.field(default="gradient", kw_only=True)
    """How it grows, and whether times count."""
    overloaded: Callable[[BaseException], bool] = attrs.field(
        default=is_refusal, kw_only=True, validator=_check.field(_check.sync), repr=False
    )
    """Whether the error with which a job failed is a refusal. By default that is an error with the
    status 429, 503 or 529 or a header Retry-After in its ``response``. It must use no lanes; what
    it raises is logged, and counts as False."""

    @low.validator
    def _check_low(self, attribute: object, value: int) -> None:
        _check.positive_count("low", _check.whole("low", value))

    @high.validator
    def _check_high(self, attribute: object, value: int) -> None:
        if _check.whole("high", value) < self.low:
            raise ValueError(f"high must not be below low, {self.low!r}, got {value!r}")

    @by.validator
    def _check_by(self, attribute: object, value: object) -> None:
        if value not in ("gradient", "aimd"):
            raise ValueError(f'by must be "gradient" or "aimd", got {value!r}')

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@final
@attrs.frozen
class LimitTried:
    """A limit that an `Adaptive` lane has tried: an item of `Lane.limits_tried`."""

    at: float
    """When, on `trio.current_time`."""
    limit: int
    reason: str
    """``"nothing was refused"``, ``"a job was refused"``, ``"jobs take as long as ever"`` or
    ``"jobs take longer"``, the last with how much."""


@final
class Tuner:
    """The limit of one lane, and what it has learned.

    Attributes:
      config: what it was made from.
      tried: the last limits, each with the reason for which the one before was left.
    """

    def __init__(self, config: Adaptive, start: float) -> None:
        self.config: Final = config
        self.tried: Final[deque[LimitTried]] = deque(maxlen=_MAX_TRIED)
        self._limit = float(min(max(start, config.low), config.high))
        self._starting = True
        self._lowered_at = -math.inf
        # of this round: successes, the most slots that were in use, and whether a time was taken
        self._count, self._peak, self._has_times = 0, 0, False
        self._timed, self._times = 0, 0.0  # the times since the last mean: how many, and their sum
        self._average: float | None = None  # of the times of rounds
        self._rounds = 0

    @property
    def limit(self) -> int:
        """How many jobs may run at once."""
        return int(self._limit)

    def refuses(self, error: BaseException) -> bool:
        """Whether an error is a refusal, by the user's predicate."""
        try:
            return bool(self.config.overloaded(error))
        except BaseException:  # as of a hook: the job has ended, and must settle
            with suppress(BaseException):  # of a logging handler, or of a `repr`
                logger.exception("Adaptive.overloaded raised an exception, which counts as False")
            return False

    def refused(self, began: float, now: float) -> bool:
        """Learn of a refusal; return whether the limit has changed.

        Args:
          began: when the job got its slot.
        """
        if began < self._lowered_at:
            return False
        left = min(self._limit * (0.5 if self._starting else _DECREASE), self._limit - 1)
        return self._change(left, now, "a job was refused")

    def succeeded(self, began: float, now: float, slots: int, *, timed: bool) -> bool:
        """Learn of a success; return whether the limit has changed.

        Args:
          began: when the job got its slot.
          slots: how many slots of the lane were in use.
          timed: whether it had its slot for all of its time.
        """
        if began < self._lowered_at:
            return False
        self._count += 1
        self._peak = max(self._peak, slots)
        gradient = self.config.by == "gradient"
        if timed and gradient:
            self._has_times = True
            self._timed += 1
            self._times += now - began
        if self._count < max(self.limit, _MIN_TIMES if gradient else 1):
            return False
        uses_half, has_times = self._peak * 2 >= self.limit, self._has_times
        self._begin_round()
        mean = self._mean()
        if not uses_half:
            return False
        if mean is not None:
            return self._follow(mean, now)
        if has_times:  # they say more once there are more of them
            return False
        more = self._limit if self._starting else 1
        return self._change(self._limit + more, now, "nothing was refused")

    def _begin_round(self) -> None:
        self._count, self._peak, self._has_times = 0, 0, False

    def _mean(self) -> float | None:
        """Return the mean of the times since the last one, if there are enough of them."""
        if self._timed < _MIN_TIMES:
            return None
        mean = self._times / self._timed
        self._timed, self._times = 0, 0.0
        return mean

    def _follow(self, mean: float, now: float) -> bool:
        """Follow the gradient of the times."""
        self._rounds += 1
        # at first it is the mean of all rounds
        weight = 1 / self._rounds if self._rounds <= _WARM_UP else _LONG_WEIGHT
        before = mean if self._average is None else self._average
        average = self._average = before + weight * (mean - before)
        if average > 2 * mean:  # after a long overload: Netflix's way back
            self._average = 0.9 * average
        gradient = 1.0 if mean <= average else max(0.5, average / mean)
        if self._starting and gradient > _SLOWER:
            return self._change(2 * self._limit, now, _AS_EVER)
        self._starting = False
        more = _SMOOTHING * (self._limit * (gradient - 1) + math.sqrt(self._limit))
        slower = f"jobs take longer: {mean:.3g} s, {average:.3g} s in the long run"
        return self._change(self._limit + more, now, slower if more < 0 else _AS_EVER)

    def _change(self, limit: float, now: float, reason: str) -> bool:
        before = self.limit
        if limit < self._limit:
            self._starting = False
            self._lowered_at = now
            self._begin_round()
            self._timed, self._times = 0, 0.0
        elif self._limit == self.config.high:
            self._starting = False  # a refusal from now on has no doubling to undo
        self._limit = min(max(limit, self.config.low), self.config.high)
        if self.limit == before:
            return False
        self.tried.append(LimitTried(now, self.limit, reason))
        return True
