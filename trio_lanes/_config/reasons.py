"""The sentences of the reasons for which a job waits, in these lanes and in durable lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import attrs

REASONS: Final[Mapping[str, str]] = {
    "delay": "its delay is not over",
    "session": "{lane} runs as many as it may",
    "order": "others are before it",
    "concurrency": "{lane} runs as many as it may",
    "pause": "{lane} is paused",
    "rate": "the rate limit of {lane} is used up",
    "group": "the group {lane} runs as many as it may",
    "reservation": "the free slots of the group {lane} are reserved",
    "job": "it runs, and waits for a job in {lane}",
    "room": "it runs, and waits for room in {lane}",
    "lent": "it runs, and has lent its slot",
}
"""By `Blocker.kind`; ``lane`` is the name of what it waits for."""

REMEDIES: Final[Mapping[str, str]] = {
    "concurrency": 'raise the concurrency of "{lane}"',
    "pause": 'resume "{lane}"',
    "rate": 'raise the rate of "{lane}"',
    "group": 'raise the concurrency of the group "{lane}"',
    "reservation": 'lower the reservations of the group "{lane}"',
    "room": 'raise max_waiting of "{lane}"',
    "deadlock": "lend the slots meanwhile (yield_slot), give the inner jobs another lane or no "
    "session, or raise the limit",
}
"""What would help at the root of a wait, by `Cause.kind`. No advice breaks an order."""

STANDSTILL_AFTER: Final = 300.0
"""After this many seconds without a sign of life, unless a lane says otherwise, the holders of all
slots are taken for hung.

Then a slot more would hang like the others: the advice is to end one of them."""


ENDLESS: Final = 1e9
"""A delay of so many seconds, which are decades, ends by an act of the application alone: the job
is held. Closing lanes do not wait for it: it settles with `LanesClosedError`."""


@final
@attrs.frozen
class Cause:
    """A root of the wait of a job, and the way to it; `str` is the line that a person reads:

    ``1594 ← 1519 of its session ← rate of "provider": 100 a minute, 21 before it, in about 13 s``
    """

    job: int
    """The id of the job that waits."""
    kind: str
    """What the root is: a `Blocker.kind`; ``"body"``, a job that runs and waits for no other;
    ``"deadlock"``; or ``"unknown"``, where the search was cut at its bound."""
    lane: str
    """The name of the lane, the session lane or the group of the root."""
    root: str
    """The root in words."""
    chain: tuple[tuple[int, str], ...] = ()
    """The jobs from that job to the root: the id of each, and what it is to the one before."""
    jobs: tuple[int, ...] = ()
    """The ids of jobs at the root: the first holders of its slots, or the jobs of the deadlock."""
    seconds: float | None = None
    """In how many seconds the root lets the last job of the chain go on, if that is known."""
    advice: str | None = None
    """What would help at the root; None if only time does."""

    def __str__(self) -> str:
        way = [str(self.job), *(f"{number} {relation}" for number, relation in self.chain)]
        when = "" if self.seconds is None else f", in about {in_words(self.seconds)}"
        return " ← ".join([*way, self.root + when])


def in_words(seconds: float) -> str:
    """Return a length of time for people, in seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


def before_it(before: int, most: int) -> str:
    """Return how many jobs are before one, for people; ``most`` of them are counted."""
    if before >= most:
        return f", {most:,} or more before it"
    return f", {before:,} before it" if before else ""
